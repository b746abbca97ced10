"""Loads and stores of a Triton program: sizes are powers of two there, and masks cut them to an array's own."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

Index = int | jax.Array
"""One axis of a place; arrays of one rank broadcast against each other."""


class Ref(Protocol):
    """An array in the GPU's memory, as a kernel gets it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""

    @property
    def dtype(self) -> jnp.dtype:
        """Of its numbers."""

    @property
    def at(self) -> Any:
        """Places in it, by indexing."""

    def __getitem__(self, index: Any) -> jax.Array:
        """A number of it."""


def load(ref: Ref, *place: Index, mask: jax.Array | None = None) -> jax.Array:
    """The numbers at a place; zeros, and nothing read, where the mask says no."""
    source = ref.at[place]
    if mask is None:
        return plgpu.load(source)
    return plgpu.load(source, mask=jnp.broadcast_to(mask, source.shape), other=0)


def store(ref: Ref, *place: Index, value: jax.Array, mask: jax.Array | None = None) -> None:
    """Put numbers at a place, but for those of which the mask says no."""
    plgpu.store(ref.at[place], value, mask=None if mask is None else jnp.broadcast_to(mask, value.shape))


def padded(size: int, least: int = 1) -> int:
    """The smallest power of two that is no smaller than either."""
    return int(pl.next_power_of_2(max(size, least)))


def columns_of(width: int, least: int = 16) -> jax.Array:
    """(1, padded width) int32 places along an array's last axis."""
    return jnp.arange(padded(width, least), dtype=jnp.int32)[None]


def within(columns: jax.Array, width: int, mask: jax.Array | None = None) -> jax.Array | None:
    """`mask` (rows, 1), and that the columns are not padding; None where there is nothing to mask."""
    if columns.shape[1] == width:
        return mask
    real = columns < width
    return real if mask is None else mask & real
