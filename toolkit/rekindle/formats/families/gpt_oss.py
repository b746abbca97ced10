"""gpt-oss: attention sinks, and experts with clamped halves, stored transposed and interleaved."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, FeedForwardConfig, ModelConfig, Names, RouterConfig
from rekindle.core.models.config.scaling import YarnScaling
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, with_windows
from rekindle.formats.families.rope import mscale

NAMES = Names(
    router="mlp.router",
    expert_gate_up=("mlp.experts.gate_up_proj",),
    expert_down="mlp.experts.down_proj",
    experts_transposed=True,
)
SCALING = YarnScaling(32.0, 4096, 32.0, 1.0, truncate=False, attention_factor=mscale(32.0, 1.0))


def read(keys: Keys) -> ModelConfig:
    """Read a gpt-oss. Even layers have windows, unless the config has `layer_types`, and a YaRN rope is the default."""
    bias = keys.flag("attention_bias", True)
    attention = replace(read_attention(keys, theta=150_000.0), qkv_bias=bias, out_bias=bias, sinks=True)
    assert attention.rope is not None
    if not keys.get("rope_parameters") and not keys.get("rope_scaling"):
        attention = replace(attention, rope=replace(attention.rope, scaling=SCALING))
    model = read_llama(keys, attention=attention)
    keys.refuse("swiglu_alpha", 1.702)
    each = FeedForwardConfig(
        read_feed_forward(keys).width, "gelu_quick", bias=True, limit=keys.number("swiglu_limit", 7.0), offset=1.0
    )
    router = RouterConfig(keys.size("num_experts_per_tok", 4), scores="chosen", bias=True)
    keys.get("experts_per_token")  # the same number again
    experts = ExpertsConfig(keys.size("num_local_experts", 128), each, router)
    layers = with_windows(keys, model.layers, lambda i: i % 2 == 0)
    return replace(
        model,
        layers=tuple(replace(layer, feed_forward=experts) for layer in layers),
        names=NAMES,
    )
