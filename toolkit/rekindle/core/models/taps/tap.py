"""The places of a decoder where a tap reads or changes activations."""

from dataclasses import dataclass
from typing import Protocol

import jax

from rekindle.core.layer_parts import Part


class Tap(Protocol):
    """A function over the activations at all places of a decoder.

    Attributes:
        reads_branches: whether `read` gets the summands of branches. Each sum is then a step of its own, and may have
            another rounding.
    """

    @property
    def reads_branches(self) -> bool: ...

    def change(self, layer: int, part: Part, before: jax.Array | None, after: jax.Array) -> jax.Array:
        """Return the residual stream to go on with, (token, hidden) float32.

        Args:
            layer: the index of the layer, or `EMBEDDING`.
            part: the part of the layer.
            before: the stream before the part was added; None for the part "residual".
            after: the stream.
        """

    def read(self, layer: int, part: Part, added: jax.Array) -> None:
        """Read the summand of a branch, (token, hidden) float32."""


@dataclass(frozen=True, slots=True)
class BranchTap:
    """A `Tap` at one branch of one layer."""

    tap: Tap
    layer: int
    part: Part

    @property
    def reads(self) -> bool:
        """True if the branch is computed apart from its sum with the stream."""
        return self.tap.reads_branches

    def change(self, before: jax.Array, after: jax.Array) -> jax.Array:
        """See `Tap.change`."""
        return self.tap.change(self.layer, self.part, before, after)

    def read(self, added: jax.Array) -> None:
        """See `Tap.read`."""
        self.tap.read(self.layer, self.part, added)


@dataclass(frozen=True, slots=True)
class LayerTap:
    """A `Tap` at the branches of one layer."""

    tap: Tap
    layer: int

    def at(self, part: Part) -> BranchTap:
        """Return the tap at one of its branches."""
        return BranchTap(self.tap, self.layer, part)
