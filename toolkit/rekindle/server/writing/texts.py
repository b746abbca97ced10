"""Embeddings and tokens, as they are given."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np


def embeddings(
    vectors: np.ndarray[Any, np.dtype[np.float32]], model: str, tokens: int, written: Literal["float", "base64"]
) -> dict[str, Any]:
    """Return embeddings, (texts, dimensions) float32, as lists of numbers or as the base64 of their bytes."""
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(vector, written)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _vector(vector: np.ndarray[Any, np.dtype[np.float32]], written: str) -> Any:
    return vector.tolist() if written == "float" else b64encode(vector.astype("<f4").tobytes()).decode()


def tokenized(tokens: Sequence[int], longest: int, texts: Sequence[str] | None) -> dict[str, Any]:
    """Return the tokens of a text, and the text of each if it was asked for."""
    return {"count": len(tokens), "max_model_len": longest, "tokens": list(tokens), "token_strs": texts}


def model_card(model: str, created: int, longest: int) -> dict[str, Any]:
    """Return what is said of a model."""
    return {"id": model, "object": "model", "created": created, "owned_by": "rekindle", "max_model_len": longest}
