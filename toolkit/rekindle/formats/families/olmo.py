"""OLMo 1: a Llama whose LayerNorms have no weights, with bounded queries, keys and values in some models."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Norm
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama


def read(keys: Keys) -> ModelConfig:
    """Read an OLMo 1."""
    bias, clip = keys.flag("attention_bias"), keys.number_or_none("clip_qkv")
    attention = replace(read_attention(keys), qkv_bias=bias, out_bias=bias, clip=clip)
    return replace(read_llama(keys, attention=attention), norm=Norm(1e-5, centred=True, weighted=False))
