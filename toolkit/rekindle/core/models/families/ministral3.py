"""Ministral 3: a Mistral with queries that grow with their position, and a YaRN rope."""

from dataclasses import replace
from typing import Any, Final

from rekindle.core.models.config import ModelConfig, QueryGrowth
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_heads, read_llama, with_windows
from rekindle.core.models.families.rope import rope_of

DEFAULT_ROPE: Final[dict[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""The rope of transformers' code, for files without one."""
GROWTH: Final = "llama_4_scaling_beta"


def read(keys: Keys) -> ModelConfig:
    """Read a Ministral 3."""
    name = "rope_parameters" if keys.get("rope_parameters") else "rope_scaling"
    own = dict(keys.get(name, DEFAULT_ROPE))
    rate, period = own.pop(GROWTH, None), own.get("original_max_position_embeddings")
    own.pop("max_position_embeddings", None)  # a copy of the config's
    context = {key: keys.get(key) for key in ("max_position_embeddings", "rope_theta")}
    attention = read_heads(keys)
    attention = replace(
        attention,
        rope=rope_of(Keys({"rope_parameters": own, **context}, keys.source), attention.head_dim),
        growth=QueryGrowth(float(rate), float(period)) if rate and period else None,
    )
    model = read_llama(keys, attention=attention)
    return replace(model, layers=with_windows(keys, model.layers))


MINISTRAL3 = Family("Ministral3ForCausalLM", read, "ministral3")
