"""The form in which a page pool is stored on TPU: whole lanes, so that XLA keeps the layout that the kernels read.

XLA lays out the last dimension of an array in 128 lanes. For a narrower array it may choose another layout, and then
copies the whole pool before and after each kernel. If head_dim is at most 64, a key and its value share the lanes of
one row, `[key, value, 0...]`, which wastes nothing for 64. For a larger head_dim they have rows of their own, padded.
So have keys that are values too, of which each is larger than 64.
"""

import math

import jax
import jax.numpy as jnp

LANES = 128

Pool = jax.Array | jax.ShapeDtypeStruct
"""Stored pages, or only their shape and dtype."""


def stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return (pages, sides, kv_heads, page_size, width) for `api.empty`'s shape; one side if a row holds both."""
    pages, sides, kv_heads, page_size, head_dim = shape
    if 2 * head_dim <= LANES:
        return (pages, 1, kv_heads, page_size, LANES)
    return (pages, sides, kv_heads, page_size, -(-head_dim // LANES) * LANES)


def pack(kv: jax.Array, pages: Pool) -> jax.Array:
    """Convert (blocks, sides, kv_heads, tokens, head_dim) keys and values to the form and dtype of the pages."""
    kv = kv.astype(pages.dtype)
    if kv.shape[1] > pages.shape[1]:
        kv = jnp.concatenate([kv[:, :1], kv[:, 1:]], axis=-1)
    return _padded(kv, pages.shape[-1])


def widen(q: jax.Array, pages: jax.Array) -> jax.Array:
    """Pad queries to the width of stored rows: the zeros meet the padding, and the values in the rows of keys."""
    return _padded(q, pages.shape[-1])


def narrow(out: jax.Array, pages: jax.Array, head_dim: int) -> jax.Array:
    """Return the part of a sum over stored rows that is the sum over values."""
    begin = head_dim if 2 * head_dim <= LANES else 0
    return out[..., begin : begin + head_dim]


def page_bytes(pages: Pool) -> int:
    """Return the bytes of a stored page."""
    return math.prod(pages.shape[1:]) * int(pages.dtype.itemsize)


def sublanes(dtype: jnp.dtype) -> int:
    """Return how many rows a tile of memory has: 8 for float32, 16 for bfloat16."""
    return 32 // jnp.dtype(dtype).itemsize


def _padded(x: jax.Array, width: int) -> jax.Array:
    return jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (0, width - x.shape[-1])))
