"""Helium: a Llama with an interleaved rope."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm


def read(keys: Keys) -> ModelConfig:
    """Read a Helium. The projection out of the heads has no bias."""
    attention = read_attention(keys, theta=100_000.0, interleaved=True, head_dim=128)
    attention = replace(attention, qkv_bias=keys.flag("attention_bias"))
    feed_forward = replace(read_feed_forward(keys), bias=keys.flag("mlp_bias"))
    model = read_llama(keys, attention=attention, feed_forward=feed_forward)
    return replace(model, norm=read_norm(keys, default=1e-8))
