"""Reader of ropes with the numbers of queries that grow with their position."""

from collections.abc import Mapping
from typing import Any, Final

from rekindle.core.models.config import QueryGrowth
from rekindle.formats.families.keys import Keys

GROWTH: Final = "llama_4_scaling_beta"


def rope_with_growth(
    keys: Keys, default: Mapping[str, Any], rate: float | None = None
) -> tuple[Keys, QueryGrowth | None]:
    """Return the keys of a rope without the growth, and the growth.

    Args:
        keys: the config.
        default: the rope of a config without one.
        rate: the growth of a rope without it; None for no growth.
    """
    name = "rope_parameters" if keys.get("rope_parameters") else "rope_scaling"
    own = dict(keys.get(name, default))
    rate, period = own.pop(GROWTH, rate), own.get("original_max_position_embeddings")
    own.pop("max_position_embeddings", None)  # a copy of the config's
    context = {key: keys.get(key) for key in ("max_position_embeddings", "rope_theta")}
    growth = QueryGrowth(float(rate), float(period)) if rate and period else None
    return Keys({"rope_parameters": own, **context}, keys.source), growth
