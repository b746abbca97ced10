"""OLMo 3: an OLMo 2 with a window and an unscaled rope in three of four layers."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.olmo2 import read_olmo
from rekindle.formats.families.reading import read_heads, with_windows
from rekindle.formats.families.rope import rope_of, ropes_by_kind, without_scaling

THETA = 500_000.0


def read(keys: Keys) -> ModelConfig:
    """Read an OLMo 3."""
    heads = read_heads(keys)
    both = ropes_by_kind(keys, heads.head_dim, THETA, THETA)
    full, local = both or (rope := rope_of(keys, heads.head_dim, THETA), without_scaling(rope))
    model = read_olmo(keys, replace(heads, rope=full))
    return replace(model, layers=with_windows(keys, model.layers, lambda i: (i + 1) % 4 > 0, rope=local))
