"""GLM-4: four norms per layer, a fused gate, and an interleaved rope over half of each head."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama

NAMES = Names(gate_up=("mlp.gate_up_proj",), after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


def read(keys: Keys) -> ModelConfig:
    """Read a GLM-4."""
    attention = read_attention(keys, share=0.5, interleaved=True)
    attention = replace(attention, qkv_bias=keys.flag("attention_bias", True))
    return replace(read_llama(keys, attention=attention), names=NAMES)
