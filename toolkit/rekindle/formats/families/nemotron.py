"""Nemotron: LayerNorms with a weight offset of 1, and a squared ReLU without a gate."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names, Norm
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm


def read(keys: Keys) -> ModelConfig:
    """Read a Nemotron."""
    attention_bias, bias = keys.flag("attention_bias"), keys.flag("mlp_bias")
    attention = replace(read_attention(keys, share=0.5), qkv_bias=attention_bias, out_bias=attention_bias)
    feed_forward = replace(read_feed_forward(keys, "relu2"), gated=False, bias=bias)
    return replace(
        read_llama(keys, attention=attention, feed_forward=feed_forward),
        norm=Norm(read_norm(keys, "norm_eps").eps, centred=True, offset=1.0, bias=True),
        names=Names(gate_up=("mlp.up_proj",)),
    )
