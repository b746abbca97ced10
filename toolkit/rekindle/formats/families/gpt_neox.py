"""GPT-NeoX and Pythia: parallel layers, each after a LayerNorm, and queries, keys and values stored by head."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm

NAMES = Names(
    embedding="gpt_neox.embed_in",
    layers="gpt_neox.layers",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
    qkv=("attention.query_key_value",),
    qkv_by_head=True,
    out="attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
)


def read(keys: Keys) -> ModelConfig:
    """Read a GPT-NeoX, with older or newer keys of its rope."""
    theta, share = keys.number("rotary_emb_base", 10_000.0), keys.number("rotary_pct", 0.25)
    bias = keys.flag("attention_bias", True)
    attention = replace(read_attention(keys, theta=theta, share=share), qkv_bias=bias, out_bias=bias)
    feed_forward = replace(read_feed_forward(keys, "gelu"), gated=False, bias=True)
    return replace(
        read_llama(keys, attention=attention, feed_forward=feed_forward),
        norm=replace(read_norm(keys, "layer_norm_eps", 1e-5), centred=True, bias=True),
        parallel=keys.flag("use_parallel_residual", True),
        names=NAMES,
    )
