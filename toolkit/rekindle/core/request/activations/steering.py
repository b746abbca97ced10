"""Steering and patches: changes of activations, as arguments of a call.

Parsers of the command line import this module, and do without numpy.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import hinted
from rekindle.core.layer_parts import Part
from rekindle.core.request.checks import preview

LayerName = int | Literal["embedding"]
"""The index of a layer, from the end if negative; "embedding" for what goes into the first layer."""
Tokens = int | slice | Sequence[int] | None
"""Positions by the rules of Python for the tokens of a prompt. A slice without an end, and None for all positions,
include generated tokens."""


@hinted
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Steering:
    """A vector added to activations: `generate(..., steer=rekindle.Steering(10, vector, scale=4))`.

    Attributes:
        layer: the layer.
        vector: (hidden,) numbers.
        scale: the factor of the vector.
        tokens: the positions, such as `slice(-1, None)` for the last token of the prompt and all after it. None
            (default) steers all.
        part: "residual" changes the output of the layer; "attention" or "mlp" change the summand of this part.
    """

    layer: LayerName
    vector: Any
    scale: float = 1.0
    tokens: Tokens = None
    part: Part = "residual"

    def __repr__(self) -> str:
        return (
            f"Steering(layer={self.layer!r}, vector={_vector(self.vector)}, scale={self.scale!r}, part={self.part!r}"
            f"{_where(self.tokens)})"
        )


@hinted
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Patch:
    """Activations put in place of others: `generate(..., patch=rekindle.Patch(10, other.residual[0, 7], tokens=7))`.

    Attributes:
        layer: the layer.
        vector: (hidden,) numbers for each of the positions, or (positions, hidden) for a list of positions.
        tokens: the positions.
        part: as in `Steering`.
    """

    layer: LayerName
    vector: Any
    tokens: Tokens
    part: Part = "residual"

    def __repr__(self) -> str:
        return f"Patch(layer={self.layer!r}, vector={_vector(self.vector)}, part={self.part!r}{_where(self.tokens)})"


def steerings(name: str, value: Any) -> tuple[Steering, ...]:
    """Return the value of `steer=` as a tuple; raises InvalidRequest for other objects."""
    return _all_of(name, value, Steering)


def patches(name: str, value: Any) -> tuple[Patch, ...]:
    """Return the value of `patch=` as a tuple; raises InvalidRequest for other objects."""
    return _all_of(name, value, Patch)


def _all_of(name: str, value: Any, kind: type[Any]) -> tuple[Any, ...]:
    every = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for one in every:
        if not isinstance(one, kind):
            raise InvalidRequest(f"{name} must be rekindle.{kind.__name__}(...) or a list of them, got {preview(one)}")
    return tuple(every)


def _vector(vector: Any) -> str:
    """Return the shape of a vector and a digest of the numbers, to tell vectors apart."""
    import numpy as np

    from rekindle.core.content import short_digest

    with suppress(TypeError, ValueError), np.errstate(all="ignore"):
        vector = np.asarray(vector, np.float32)
    return f"<{'x'.join(map(str, np.shape(vector)))} numbers #{short_digest(vector)}>"


def _where(tokens: Tokens) -> str:
    return "" if tokens is None else f", tokens={tokens!r}"
