"""Ministral 3: a Mistral with queries that grow with their position, and a YaRN rope."""

from dataclasses import replace
from typing import Any, Final

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.growth import GROWTH, rope_with_growth
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_heads, read_llama, with_windows
from rekindle.formats.families.rope import rope_of

DEFAULT_ROPE: Final[dict[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    GROWTH: 0.1,
}
"""The rope of transformers' code, for files without one."""


def read(keys: Keys) -> ModelConfig:
    """Read a Ministral 3."""
    rope, growth = rope_with_growth(keys, DEFAULT_ROPE)
    attention = read_heads(keys)
    attention = replace(attention, rope=rope_of(rope, attention.head_dim), growth=growth)
    model = read_llama(keys, attention=attention)
    return replace(model, layers=with_windows(keys, model.layers))
