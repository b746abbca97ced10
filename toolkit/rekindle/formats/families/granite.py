"""Granite: a Llama with four multipliers."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read a Granite. Its logits are divided by `logits_scaling`."""
    bias, scale = keys.flag("attention_bias"), keys.number("attention_multiplier", 1.0)
    attention = replace(read_attention(keys), scale=scale, qkv_bias=bias, out_bias=bias)
    feed_forward = replace(read_feed_forward(keys), bias=keys.flag("mlp_bias"))
    return replace(
        read_llama(keys, attention=attention, feed_forward=feed_forward),
        embedding_multiplier=keys.number("embedding_multiplier", 1.0),
        residual_multiplier=keys.number("residual_multiplier", 1.0),
        logit_multiplier=1 / keys.number("logits_scaling", 1.0),
    )
