"""The places of a decoder where a tap reads or changes activations."""

from typing import Protocol

import jax

from rekindle.core.parts import Part


class Tap(Protocol):
    """A function over the activations at all places of a decoder."""

    def __call__(self, layer: int, part: Part, x: jax.Array) -> jax.Array:
        """Return the activations to go on with, (token, hidden) float32.

        Args:
            layer: the index of the layer, or `EMBEDDING`.
            part: the part of the layer.
            x: the activations of all tokens.
        """


class LayerTap(Protocol):
    """A `Tap` of one layer."""

    def __call__(self, part: Part, x: jax.Array) -> jax.Array: ...
