"""Apertus: normalised queries and keys, and an activation with learned numbers, without a gate."""

from dataclasses import replace

from rekindle.core.models.config import FeedForwardConfig, HeadNorm, ModelConfig, Names
from rekindle.core.models.config.scaling import Llama3Scaling
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, read_attention, read_llama, read_norm

NAMES = Names(gate_up=("mlp.up_proj",), before_attention="attention_layernorm", before_mlp="feedforward_layernorm")
THETA = 12_000_000.0
SCALING = Llama3Scaling(8.0, 1.0, 4.0, 8192)


def read(keys: Keys) -> ModelConfig:
    """Read an Apertus. Its rope is scaled like Llama 3's unless the config has another one."""
    norm, bias = read_norm(keys, default=1e-5), keys.flag("attention_bias")
    keys.refuse("post_norm", False)
    keys.refuse("qk_norm", True)
    attention = read_attention(keys, theta=THETA)
    assert attention.rope is not None
    if not keys.get("rope_parameters") and not keys.get("rope_scaling"):
        attention = replace(attention, rope=replace(attention.rope, scaling=SCALING))
    attention = replace(attention, qkv_bias=bias, out_bias=bias, head_norm=HeadNorm(norm))
    learned = keys.get("hidden_act", "xielu") == "xielu"
    activation = "xielu" if learned else activation_of(keys)
    feed_forward = FeedForwardConfig(keys.size("intermediate_size"), activation, gated=False)
    return replace(read_llama(keys, attention=attention, feed_forward=feed_forward), norm=norm, names=NAMES)
