"""Detection of separate output heads in checkpoints whose config declares tied embeddings."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rekindle.core.models.config import ModelConfig

_ROWS: Final = 4096
"""Number of rows to compare at a time, to limit host memory."""


def head_and_embedding(config: ModelConfig) -> tuple[str, str]:
    """Return the names of the head and the embedding, the same tensor in models with tied embeddings."""
    return f"{config.names.head}.weight", f"{config.names.embedding}.weight"


def has_separate_head(config: ModelConfig, tensors: Mapping[str, Any]) -> bool:
    """Return True if the head differs from the embedding although the config declares tied embeddings.

    transformers and llama.cpp use a separate head, too. It results from fine-tuning the head alone.
    """
    head, embedding = head_and_embedding(config)
    if not config.tied_embeddings or head not in tensors or embedding not in tensors:
        return False
    head_rows, embedding_rows = tensors[head], tensors[embedding]
    if head_rows is embedding_rows:
        return False
    if np.shape(head_rows) != np.shape(embedding_rows):
        return True
    starts = range(0, np.shape(head_rows)[0], _ROWS)
    return any(
        _bytes(head_rows[start : start + _ROWS]) != _bytes(embedding_rows[start : start + _ROWS]) for start in starts
    )


def _bytes(rows: Any) -> bytes:
    return np.asarray(rows).astype(np.float32).tobytes()
