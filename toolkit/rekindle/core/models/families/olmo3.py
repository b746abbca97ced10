"""OLMo 3: an OLMo 2 with a window and an unscaled rope in three of four layers."""

from dataclasses import replace

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.olmo2 import read_olmo
from rekindle.core.models.families.reading import Family, with_windows
from rekindle.core.models.families.rope import rope_of, without_scaling


def read(keys: Keys) -> ModelConfig:
    """Read an OLMo 3."""
    model = read_olmo(keys)
    local = without_scaling(rope_of(keys, model.attentions[0].head_dim, 500_000.0))
    return replace(model, layers=with_windows(keys, model.layers, lambda i: (i + 1) % 4 > 0, rope=local))


OLMO3 = Family("Olmo3ForCausalLM", read, "olmo3")
