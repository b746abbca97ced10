"""dots.llm1 and Solar Open: plain attention, and experts chosen by sigmoids with a correction."""

from dataclasses import replace

from rekindle.core.models.config import FeedForwardConfig, HeadNorm, ModelConfig
from rekindle.formats.families.experts import SHARED, corrected_router, dense_first, routed_experts
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm, with_windows


def read(keys: Keys) -> ModelConfig:
    """Read a dots.llm1. Layers from `max_window_layers` on have windows."""
    bias, last = keys.flag("attention_bias"), keys.get("max_window_layers", 62)
    attention = replace(read_attention(keys), qkv_bias=bias, out_bias=bias, head_norm=HeadNorm(read_norm(keys)))
    model = read_llama(keys, attention=attention)
    layers = with_windows(keys, model.layers, lambda i: i >= last, default_size=4096)
    experts = routed_experts(keys, corrected_router(keys, per_token=None, normalised=False))
    return replace(model, layers=dense_first(keys, layers, experts, 0), names=SHARED)


def read_solar_open(keys: Keys) -> ModelConfig:
    """Read a Solar Open. All layers have experts."""
    attention = read_attention(keys, theta=1_000_000.0, head_dim=128, kv_heads=8)
    attention = replace(attention, qkv_bias=keys.flag("attention_bias"))
    experts = routed_experts(keys, corrected_router(keys), 1)
    keys.get("intermediate_size")  # of no layer
    keys.refuse("first_k_dense_replace", 0)
    none = FeedForwardConfig(0)
    model = read_llama(keys, attention=attention, feed_forward=none)
    layers = tuple(replace(layer, feed_forward=experts) for layer in model.layers)
    return replace(model, layers=layers, norm=read_norm(keys, default=1e-5), names=SHARED)
