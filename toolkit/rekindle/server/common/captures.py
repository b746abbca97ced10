"""Captured activations of answers over HTTP: their field, its bound, and their object in an answer."""

from base64 import b64encode
from typing import Any, Final

from rekindle.results.generation import Generation
from rekindle.server.common.call import Call
from rekindle.server.common.errors import invalid_field

FIELD: Final = "capture"
MOST_VECTORS: Final = 4096
"""Maximum number of vectors in all answers to one body: 64 MiB of them for a hidden size of 4,096."""


def check_capture(call: Call) -> None:
    """Refuse a capture without named layers, and one with more than `MOST_VECTORS`.

    Raises:
        ApiError: the field is invalid.
    """
    value = call.options[FIELD]
    places = value if isinstance(value, list) else [value]
    parts = sum(isinstance(place, str) for place in places)
    layers = len(places) - parts
    if not layers:
        raise invalid_field(FIELD, f'{FIELD} must name layers over HTTP, such as [15] or [15, -1, "mlp"]')
    tokens = call.options.get("max_tokens")
    if type(tokens) is not int:
        raise invalid_field(FIELD, f"{FIELD} requires max_tokens, by which its vectors are counted")
    vectors = call.answers * tokens * layers * max(1, parts)
    if vectors > MOST_VECTORS:
        how = f"at most {MOST_VECTORS}: name fewer layers, or lower max_tokens"
        raise invalid_field(FIELD, f"{FIELD} may have {vectors} vectors (of answers, tokens, layers and parts), {how}")


def activations_object(generation: Generation) -> dict[str, Any] | None:
    """Return the captured activations of an answer; None without any.

    Each vector is base64 of little-endian float32, as in OpenAI's embeddings, by part, layer and token.
    """
    captured = generation.activations
    if captured is None:
        return None
    vectors: dict[str, Any] = {
        part: [[_base64(vector) for vector in captured.at(layer, part)] for layer in captured.layers]
        for part in captured.parts
    }
    return {"layers": list(captured.layers), "width": captured.embedding.shape[1], **vectors}


def _base64(vector: Any) -> str:
    return b64encode(vector.astype("<f4").tobytes()).decode()
