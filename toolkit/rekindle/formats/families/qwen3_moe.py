"""Qwen3 MoE: a Qwen3 with experts in some layers."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families import qwen3
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.qwen2_moe import read_experts, with_experts


def read(keys: Keys) -> ModelConfig:
    """Read a Qwen3 MoE."""
    model = qwen3.read(keys)
    return replace(model, layers=with_experts(keys, model.layers, read_experts(keys)))
