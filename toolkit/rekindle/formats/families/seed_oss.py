"""Seed-OSS: a Llama with separate settings for the biases of attention's input and output projections."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Seed-OSS."""
    attention = replace(
        read_attention(keys),
        qkv_bias=keys.flag("attention_bias", True),
        out_bias=keys.flag("attention_out_bias"),
    )
    feed_forward = replace(read_feed_forward(keys), bias=keys.flag("mlp_bias"))
    return read_llama(keys, attention=attention, feed_forward=feed_forward)
