"""Ernie 4.5: a Llama with an interleaved rope, and with all biases or none."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read an Ernie 4.5."""
    bias = keys.flag("use_bias")
    attention = read_attention(keys, theta=500_000.0, interleaved=True)
    model = read_llama(
        keys,
        attention=replace(attention, qkv_bias=bias, out_bias=bias),
        feed_forward=replace(read_feed_forward(keys), bias=bias),
    )
    return replace(
        model,
        tied_embeddings=keys.flag("tie_word_embeddings", True),
    )
