"""Phi-3 and Phi-4: fused projections, and a rope over a part of each head."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig, Names
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_llama, with_windows

NAMES = Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def read(keys: Keys) -> ModelConfig:
    """Read a Phi-3."""
    model = read_llama(keys)
    keys.get("original_max_position_embeddings")  # used by "longrope" only
    return replace(model, layers=with_windows(keys, model.layers), names=NAMES)
