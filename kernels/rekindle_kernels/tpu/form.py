"""How a page pool is stored for TPU: in whole lanes, so that XLA keeps the layout that the kernels read.

XLA lays an array out with 128 lanes in its last dimension. For a narrower one it may choose another layout, and would
then copy the whole pool before and after each kernel. A head of at most 64 numbers has its keys and values side by side
in the lanes of one row, `[key, value, 0...]`, which wastes nothing for 64; a wider head has them apart, each padded.
"""

import math

import jax
import jax.numpy as jnp

LANES = 128

Pool = jax.Array | jax.ShapeDtypeStruct
"""Pages as they are stored, or their shape and dtype alone."""


def stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(pages, sides, kv_heads, page_size, width) for `api.empty`'s shape; one side where keys and values are joined."""
    pages, _, kv_heads, page_size, head_dim = shape
    if 2 * head_dim <= LANES:
        return (pages, 1, kv_heads, page_size, LANES)
    return (pages, 2, kv_heads, page_size, -(-head_dim // LANES) * LANES)


def pack(kv: jax.Array, pages: Pool) -> jax.Array:
    """(blocks, 2, kv_heads, tokens, head_dim) keys and values in the form and dtype of the pages."""
    kv = kv.astype(pages.dtype)
    if pages.shape[1] == 1:
        kv = jnp.concatenate([kv[:, :1], kv[:, 1:]], axis=-1)
    return _padded(kv, pages.shape[-1])


def widen(q: jax.Array, pages: jax.Array) -> jax.Array:
    """Queries as wide as stored rows: zeros meet the padding, and the values that keys are joined with."""
    return _padded(q, pages.shape[-1])


def narrow(out: jax.Array, pages: jax.Array, head_dim: int) -> jax.Array:
    """The part of a sum over stored rows that is a sum over values."""
    begin = head_dim if pages.shape[1] == 1 else 0
    return out[..., begin : begin + head_dim]


def page_bytes(pages: Pool) -> int:
    """What a stored page takes."""
    return math.prod(pages.shape[1:]) * int(pages.dtype.itemsize)


def sublanes(dtype: jnp.dtype) -> int:
    """Rows of the tiles that memory is made of."""
    return 32 // jnp.dtype(dtype).itemsize


def _padded(x: jax.Array, width: int) -> jax.Array:
    return jnp.pad(x, (*((0, 0),) * (x.ndim - 1), (0, width - x.shape[-1])))
