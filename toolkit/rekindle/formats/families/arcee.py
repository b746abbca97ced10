"""Arcee AFM: a Llama whose feed-forward layers have a squared ReLU without a gate."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm


def read(keys: Keys) -> ModelConfig:
    """Read an Arcee."""
    bias = keys.flag("attention_bias")
    attention = replace(read_attention(keys), qkv_bias=bias, out_bias=bias)
    feed_forward = replace(read_feed_forward(keys, "relu2"), gated=False, bias=keys.flag("mlp_bias"))
    model = read_llama(keys, attention=attention, feed_forward=feed_forward)
    return replace(model, norm=read_norm(keys, default=1e-5), names=Names(gate_up=("mlp.up_proj",)))
