"""Rows of int8 with their scales: the form of keys and values in pages of int8.

A position of a head has `head_dim` codes from -127 to 127, and behind the codes a float32 scale for each `GROUP` of
them, in one row. The last group may be smaller. So pages are copied, moved and stored like those of other dtypes, and
the form of a position depends on nothing else.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

GROUP: Final = 64
"""Numbers with one scale. A single scale for heads of 256 has twice the divergence; one for 32 has 0.6 of it."""
SCALE_BYTES: Final = 4
LARGEST: Final = 127
SMALLEST: Final = 2.0**-100
"""Groups of smaller numbers are stored as zeros."""


def groups_of(head_dim: int) -> int:
    """Return the number of scales of a row."""
    return -(-head_dim // GROUP)


def stored_groups(width: int) -> int:
    """Return the number of scales of stored rows of a width."""
    return -(-width // (GROUP + SCALE_BYTES))


def stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of stored rows for numbers of this shape."""
    return (*shape[:-1], shape[-1] + SCALE_BYTES * groups_of(shape[-1]))


def quantize(numbers: jax.Array) -> jax.Array:
    """Convert numbers (..., head_dim) to stored rows. A group with a NaN or an infinity has a scale that is not finite.

    The scale is `largest * (1 / 127)`, and a code is `number * (127 / largest)`, rounded to the nearest integer.
    """
    *outer, head_dim = numbers.shape
    groups = groups_of(head_dim)
    spare = [(0, 0)] * len(outer) + [(0, groups * GROUP - head_dim if groups > 1 else 0)]
    numbers = jnp.pad(numbers.astype(jnp.float32), spare, mode="edge").reshape(*outer, groups, -1)
    largest = jnp.abs(numbers).max(axis=-1, keepdims=True)
    usable = jnp.isfinite(largest) & (largest >= SMALLEST)
    codes = lax.round(numbers * (LARGEST / jnp.where(usable, largest, 1.0)), lax.RoundingMethod.TO_NEAREST_EVEN)
    codes = jnp.where(usable, codes, 0.0).astype(jnp.int8).reshape(*outer, -1)[..., :head_dim]
    scales = lax.bitcast_convert_type(largest * jnp.float32(1 / LARGEST), jnp.int8)
    return jnp.concatenate([codes, scales.reshape(*outer, groups * SCALE_BYTES)], axis=-1)


def split(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the codes of stored rows, (..., head_dim) int8, and their scales, (..., groups) float32."""
    *outer, width = rows.shape
    groups = stored_groups(width)
    head_dim = width - groups * SCALE_BYTES
    scales = rows[..., head_dim:].reshape(*outer, groups, SCALE_BYTES)
    return rows[..., :head_dim], lax.bitcast_convert_type(scales, jnp.float32)


def dequantize(rows: jax.Array) -> jax.Array:
    """Convert stored rows to numbers, (..., head_dim) float32."""
    codes, scales = split(rows)
    by_number = scales if scales.shape[-1] == 1 else jnp.repeat(scales, GROUP, axis=-1)[..., : codes.shape[-1]]
    return codes.astype(jnp.float32) * by_number
