"""Rows of int8 with their scale: the form of keys and values in pages of int8.

A position of a head has `head_dim` codes from -127 to 127 and the four bytes of a float32 scale, in one row. So pages
are copied, moved and stored like those of other dtypes, and the form of a position depends on nothing else.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

SCALE_BYTES: Final = 4
LARGEST: Final = 127
SMALLEST: Final = 2.0**-100
"""Rows of smaller numbers are stored as zeros."""


def stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of stored rows for numbers of this shape."""
    return (*shape[:-1], shape[-1] + SCALE_BYTES)


def quantize(numbers: jax.Array) -> jax.Array:
    """Convert numbers (..., head_dim) to stored rows. A row with a NaN or an infinity has a scale that is not finite.

    The scale is `largest * (1 / 127)`, and a code is `number * (127 / largest)`, rounded to the nearest integer.
    """
    numbers = numbers.astype(jnp.float32)
    largest = jnp.abs(numbers).max(axis=-1, keepdims=True)
    usable = jnp.isfinite(largest) & (largest >= SMALLEST)
    codes = lax.round(numbers * (LARGEST / jnp.where(usable, largest, 1.0)), lax.RoundingMethod.TO_NEAREST_EVEN)
    codes = jnp.where(usable, codes, 0.0).astype(jnp.int8)
    scales = lax.bitcast_convert_type(largest * jnp.float32(1 / LARGEST), jnp.int8)
    return jnp.concatenate([codes, scales.reshape(*codes.shape[:-1], SCALE_BYTES)], axis=-1)


def split(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the codes of stored rows, (..., head_dim) int8, and their scales, (...) float32."""
    codes, scales = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:]
    return codes, lax.bitcast_convert_type(scales, jnp.float32)


def dequantize(rows: jax.Array) -> jax.Array:
    """Convert stored rows to numbers, (..., head_dim) float32."""
    codes, scales = split(rows)
    return codes.astype(jnp.float32) * scales[..., None]
