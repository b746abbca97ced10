"""Stored form of a page pool on TPU: rows of whole lanes, so that XLA keeps the kernels' layout.

XLA lays out the last dimension of an array in 128 lanes. For a narrower array it may choose another layout, and then
copies the whole pool before and after each kernel. If head_dim is at most 64, a key and its value share one row,
`[key, value, 0...]`, without padding for 64. For a larger head_dim, keys and values have separate, padded rows. A
single side for both keys and values requires a head_dim above 64.
"""

import math

import jax
import jax.numpy as jnp

LANES = 128

Pool = jax.Array | jax.ShapeDtypeStruct
"""Stored pages, or only their shape and dtype."""


def stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return (pages, sides, kv_heads, page_size, width) for a shape of `api.empty`; one side for shared rows."""
    pages, sides, kv_heads, page_size, head_dim = shape
    if 2 * head_dim <= LANES:
        return (pages, 1, kv_heads, page_size, LANES)
    return (pages, sides, kv_heads, page_size, -(-head_dim // LANES) * LANES)


def pack(kv: jax.Array, pages: Pool) -> jax.Array:
    """Convert (blocks, sides, kv_heads, tokens, head_dim) keys and values to the form and dtype of the pages."""
    kv = kv.astype(pages.dtype)
    if kv.shape[1] > pages.shape[1]:
        kv = jnp.concatenate([kv[:, :1], kv[:, 1:]], axis=-1)
    return _pad(kv, pages.shape[-1])


def widen(q: jax.Array, pages: jax.Array) -> jax.Array:
    """Pad queries to the width of stored rows, with zeros against the padding and against values in shared rows."""
    return _pad(q, pages.shape[-1])


def narrow(out: jax.Array, pages: jax.Array, head_dim: int) -> jax.Array:
    """Return the values' part of a sum over stored rows."""
    begin = head_dim if 2 * head_dim <= LANES else 0
    return out[..., begin : begin + head_dim]


def page_bytes(pages: Pool) -> int:
    """Return the bytes of a stored page."""
    return math.prod(pages.shape[1:]) * int(pages.dtype.itemsize)


def sublanes(dtype: jnp.dtype) -> int:
    """Return the number of rows in a memory tile: 8 for float32, 16 for bfloat16."""
    return 32 // jnp.dtype(dtype).itemsize


def _pad(x: jax.Array, width: int) -> jax.Array:
    return jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (0, width - x.shape[-1])))
