"""Phi 1 to 2: parallel layers after one LayerNorm, biases everywhere and of logits, a rope over a part of each head."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm

NAMES = Names(
    norm="model.final_layernorm",
    out="self_attn.dense",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
    before_mlp=None,
)


def read(keys: Keys) -> ModelConfig:
    """Read a Phi."""
    norm = replace(read_norm(keys, "layer_norm_eps", 1e-5), centred=True, bias=True)
    attention = replace(read_attention(keys, share=0.5), qkv_bias=True, out_bias=True)
    feed_forward = replace(read_feed_forward(keys, "gelu_new"), gated=False, bias=True)
    model = read_llama(keys, attention=attention, feed_forward=feed_forward)
    return replace(model, norm=norm, parallel=True, head_bias=True, names=NAMES)
