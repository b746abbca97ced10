"""Loads and stores of a Triton program. Its sizes are powers of two, so masks limit access to an array's size."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

Index = int | jax.Array
"""Index along one axis; index arrays of equal rank broadcast against each other."""


class Ref(Protocol):
    """An array in the GPU's memory, as an argument of a kernel."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the array."""

    @property
    def at(self) -> Any:
        """The indexer of the array for loads and stores."""

    def __getitem__(self, index: Any) -> jax.Array:
        """Read one number."""


def load(ref: Ref, *place: Index, mask: jax.Array | None = None) -> jax.Array:
    """Load numbers; entries with a false mask are not read and become zero."""
    source = ref.at[place]
    if mask is None:
        return plgpu.load(source)
    return plgpu.load(source, mask=jnp.broadcast_to(mask, source.shape), other=0)


def store(ref: Ref, *place: Index, value: jax.Array, mask: jax.Array | None = None) -> None:
    """Store numbers, except entries with a false mask."""
    plgpu.store(ref.at[place], value, mask=None if mask is None else jnp.broadcast_to(mask, value.shape))


def padded(size: int, least: int = 1) -> int:
    """Return the smallest power of two not below `size` and `least`."""
    return int(pl.next_power_of_2(max(size, least)))


def columns_of(width: int, least: int = 16) -> jax.Array:
    """Return the indices along an array's last axis, (1, padded width) int32."""
    return jnp.arange(padded(width, least), dtype=jnp.int32)[None]


def within(columns: jax.Array, width: int, mask: jax.Array | None = None) -> jax.Array | None:
    """Combine a mask (rows, 1) with the mask of unpadded columns; return None if there is nothing to mask."""
    if columns.shape[1] == width:
        return mask
    real = columns < width
    return real if mask is None else mask & real
