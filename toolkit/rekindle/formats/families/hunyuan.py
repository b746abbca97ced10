"""Hunyuan, dense: normalised queries and keys after the rope, and a scaled base of the rope."""

from dataclasses import replace

from rekindle.core.models.config import HeadNorm, ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm

NAMES = Names(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")


def read(keys: Keys) -> ModelConfig:
    """Read a dense Hunyuan."""
    bias = keys.flag("attention_bias")
    keys.refuse("use_qk_norm", True)  # in published files, but not in files saved by transformers
    head_norm = HeadNorm(read_norm(keys), after_rope=True)
    attention = replace(read_attention(keys), qkv_bias=bias, out_bias=bias, head_norm=head_norm)
    return replace(read_llama(keys, attention=attention), names=NAMES)
