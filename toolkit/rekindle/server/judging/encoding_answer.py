"""Embeddings and tokens."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np


def embeddings(
    vectors: np.ndarray[Any, np.dtype[np.float32]], model: str, tokens: int, encoding: Literal["float", "base64"]
) -> dict[str, Any]:
    """Return embeddings, (texts, dimensions) float32, as lists of numbers or as the base64 of their bytes."""
    data = [
        {"object": "embedding", "index": index, "embedding": vector_object(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def vector_object(vector: np.ndarray[Any, np.dtype[np.float32]], encoding: Literal["float", "base64"]) -> Any:
    """Return a vector as a list of numbers, or as the base64 of its bytes."""
    return vector.tolist() if encoding == "float" else b64encode(vector.astype("<f4").tobytes()).decode()


def tokens_object(tokens: Sequence[int], longest: int, texts: Sequence[str] | None) -> dict[str, Any]:
    """Return the token ids of a text, and the text of each unless `texts` is None."""
    return {"count": len(tokens), "max_model_len": longest, "tokens": list(tokens), "token_strs": texts}


def pieces_object(tokens: Sequence[int], texts: Sequence[str]) -> dict[str, Any]:
    """Return the token ids of a text, each with its own text, in llama.cpp's form."""
    return {"tokens": [{"id": token, "piece": text} for token, text in zip(tokens, texts, strict=True)]}
