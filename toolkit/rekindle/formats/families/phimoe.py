"""Phi-3.5-MoE: LayerNorms and biases, a rope for long contexts, and experts weighted among like scores."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, ModelConfig, RouterConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.mixtral import NAMES
from rekindle.formats.families.reading import (
    read_attention,
    read_feed_forward,
    read_llama,
    read_norm,
    with_windows,
)


def read(keys: Keys) -> ModelConfig:
    """Read a Phi-3.5-MoE, with two experts per token."""
    keys.refuse("num_experts_per_tok", 2)
    keys.get("original_max_position_embeddings")
    bias = keys.flag("attention_bias")
    attention = read_attention(keys, theta=1_000_000.0, kv_heads=8)
    model = read_llama(keys, attention=replace(attention, qkv_bias=bias, out_bias=bias))
    router = RouterConfig(2, scores="alike", tolerance=2 * keys.number("router_jitter_noise", 0.01))
    experts = ExpertsConfig(keys.size("num_local_experts", 16), read_feed_forward(keys), router)
    layers = tuple(replace(layer, feed_forward=experts) for layer in with_windows(keys, model.layers))
    norm = replace(read_norm(keys, default=1e-5), centred=True, bias=True)
    return replace(model, layers=layers, norm=norm, head_bias=keys.flag("lm_head_bias"), names=NAMES)
