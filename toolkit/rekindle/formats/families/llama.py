"""Llama 1 to 3, and models of the same form: SmolLM2, Yi, and many others."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Llama. All projections of attention have biases, or none; the same holds for the feed-forward layer."""
    bias = keys.flag("attention_bias")
    attention = replace(read_attention(keys), qkv_bias=bias, out_bias=bias)
    feed_forward = replace(read_feed_forward(keys), bias=keys.flag("mlp_bias"))
    return read_llama(keys, attention=attention, feed_forward=feed_forward)
