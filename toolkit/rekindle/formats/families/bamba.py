"""Bamba: a Llama with Mamba-2 in most layers, and a rope over half of each head."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.hybrid import kinds_of, read_mamba, with_states
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm

NAMES = Names(
    norm="model.final_layernorm",
    before_mlp="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)


def read(keys: Keys) -> ModelConfig:
    """Read a Bamba. transformers fixes the rotary half of a head."""
    for unused in ("attn_rotary_emb", "partial_rotary_factor", "num_logits_to_keep", "z_loss_coefficient"):
        keys.get(unused)
    norm, bias = read_norm(keys, default=1e-5), keys.flag("attention_bias")
    attention = replace(read_attention(keys, kv_heads=8), qkv_bias=bias, out_bias=bias)
    assert attention.rope is not None
    attention = replace(attention, rope=replace(attention.rope, dims=attention.head_dim // 2))
    feed_forward = replace(read_feed_forward(keys), bias=keys.flag("mlp_bias"))
    model = read_llama(keys, attention=attention, feed_forward=feed_forward)
    full = keys.get("attn_layer_indices", ())
    kinds = kinds_of(keys, model.num_layers, lambda i: i in full, "layers_block_type")
    state = read_mamba(keys, norm)
    return replace(model, layers=with_states(model.layers, kinds, state), norm=norm, names=NAMES)
