"""Qwen3: queries and keys normalised per head, and biases only if set in the config."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm, with_windows


def read(keys: Keys) -> ModelConfig:
    """Read a Qwen3."""
    bias, first = keys.flag("attention_bias"), keys.get("max_window_layers", 28)
    head_norm = HeadNorm(read_norm(keys))
    attention = replace(read_attention(keys), qkv_bias=bias, out_bias=bias, head_norm=head_norm)
    model = read_llama(keys, attention=attention)
    return replace(model, layers=with_windows(keys, model.layers, lambda i: i >= first, default_on=False))
