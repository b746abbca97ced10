"""Qwen2 and Qwen2.5: biases of queries, keys and values, and possibly a window in later layers."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, with_windows


def read(keys: Keys) -> ModelConfig:
    """Read a Qwen2."""
    model = read_llama(keys, attention=replace(read_attention(keys), qkv_bias=True))
    first = keys.get("max_window_layers", 28)
    keys.get("attention_bias")  # without effect: queries, keys and values always have biases
    return replace(model, layers=with_windows(keys, model.layers, lambda i: i >= first, default_on=False))
