"""Deferred inputs of linear layers: a layer computes inputs of few rows itself, to save a call."""

from dataclasses import dataclass

import jax


@dataclass(frozen=True, slots=True)
class Normed:
    """A deferred `layers.rms_norm(x, weight, eps)`, or if it is centred, `layers.layer_norm(x, weight, bias, eps)`.

    Attributes:
        x: (rows, features) float32.
        weight: (features,) float.
        eps: see `layers.rms_norm`.
        centred: whether the mean is subtracted first.
        bias: (features,) float, only with `centred`; None for none.
    """

    x: jax.Array
    weight: jax.Array
    eps: float
    centred: bool = False
    bias: jax.Array | None = None


@dataclass(frozen=True, slots=True)
class Gated:
    """A deferred `layers.gate(x)`.

    Attributes:
        x: (rows, 2 * features) float32.
    """

    x: jax.Array


Input = jax.Array | Normed | Gated


def shape_of(x: Input) -> tuple[int, int]:
    """Return the rows and features of an input of a linear layer."""
    if isinstance(x, Gated):
        return x.x.shape[0], x.x.shape[1] // 2
    rows, features = x.x.shape if isinstance(x, Normed) else x.shape
    return rows, features
