"""Captures: the activations of generated tokens that a request returns, as an argument of a call."""

import operator
from dataclasses import dataclass
from typing import Any

from rekindle.core.errors import InvalidRequest
from rekindle.core.layer_parts import PARTS, Part
from rekindle.core.request import checks


@dataclass(frozen=True, slots=True)
class Capture:
    """Layers and parts with activations to return.

    Attributes:
        layers: the indices of layers, from the end if negative; empty for all.
        parts: the parts of each layer.
    """

    layers: tuple[int, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Captured:
    """Activations of the tokens of an answer.

    Attributes:
        layers, parts: their places.
        states: (1 + layers * parts, tokens, hidden) float32 of numpy, the embeddings, and then the parts of each layer.
        texts: the text of each token.
        depth: the number of layers of the model.
        version: the number of the weights; None without tokens.
    """

    layers: tuple[int, ...]
    parts: tuple[Part, ...]
    states: Any
    texts: tuple[str, ...]
    depth: int
    version: int | None = None


def capture(name: str, value: Any) -> Capture:
    """Return the value of `capture=`, one or more layers and parts; raises InvalidRequest for other objects."""
    every = list(value) if checks.is_sequence(value) else [value]
    parts = [one for one in every if isinstance(one, str) and one in PARTS]
    layers = [number for one in every if (number := _layer(one)) is not None]
    if not every or len(layers) + len(parts) < len(every):
        names = ", ".join(map(repr, PARTS))
        raise InvalidRequest(f"{name} must be indices of layers and parts ({names}), got {checks.preview(value)}")
    return Capture(tuple(dict.fromkeys(layers)), tuple(dict.fromkeys(parts)) or ("residual",))


def _layer(value: Any) -> int | None:
    """Return an index of a layer; None for something else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
