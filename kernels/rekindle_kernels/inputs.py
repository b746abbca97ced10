"""Inputs of linear layers that need not lie in memory: a layer of few rows may compute them on the way."""

from dataclasses import dataclass

import jax


@dataclass(frozen=True, slots=True)
class Normed:
    """Stand for `layers.rms_norm(x, weight, eps)`.

    Attributes:
        x: (rows, features) float32.
        weight: (features,) float.
    """

    x: jax.Array
    weight: jax.Array
    eps: float


@dataclass(frozen=True, slots=True)
class Gated:
    """Stand for `layers.gate(x)`.

    Attributes:
        x: (rows, 2 * features) float32.
    """

    x: jax.Array


Input = jax.Array | Normed | Gated


def shape_of(x: Input) -> tuple[int, int]:
    """Return the rows and the features of what a linear layer reads."""
    if isinstance(x, Gated):
        return x.x.shape[0], x.x.shape[1] // 2
    rows, features = x.x.shape if isinstance(x, Normed) else x.shape
    return rows, features
