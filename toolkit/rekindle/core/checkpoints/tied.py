"""Heads that a checkpoint has, whatever its config says of them."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rekindle.core.models.config import ModelConfig

_ROWS: Final = 4096
"""Rows that are compared at a time, so that host memory holds little of both matrices."""


def head_and_embedding(config: ModelConfig) -> tuple[str, str]:
    """Return the names of the two tensors that are one where embeddings are tied."""
    return f"{config.names.head}.weight", f"{config.names.embedding}.weight"


def has_own_head(config: ModelConfig, tensors: Mapping[str, Any]) -> bool:
    """Tell whether tensors have a head that is another than the embedding, though their config says it is the same.

    transformers and llama.cpp use such a head too. Checkpoints have one after their head alone was changed.
    """
    head, embedding = head_and_embedding(config)
    if not config.tied_embeddings or head not in tensors or embedding not in tensors:
        return False
    one, other = tensors[head], tensors[embedding]
    if np.shape(one) != np.shape(other):
        return True
    starts = range(0, np.shape(one)[0], _ROWS)
    return any(_bytes(one[start : start + _ROWS]) != _bytes(other[start : start + _ROWS]) for start in starts)


def _bytes(rows: Any) -> bytes:
    return np.asarray(rows).astype(np.float32).tobytes()
