"""GLM of the first form (GLM-4 9B of 2024, GLM-Edge): a fused gate, and an interleaved rope over half of each head."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm


def read(keys: Keys) -> ModelConfig:
    """Read a GLM."""
    attention = read_attention(keys, share=0.5, interleaved=True, head_dim=128, kv_heads=2)
    attention = replace(attention, qkv_bias=keys.flag("attention_bias", True))
    model = read_llama(keys, attention=attention)
    return replace(model, norm=read_norm(keys, default=1.5625e-7), names=Names(gate_up=("mlp.gate_up_proj",)))
