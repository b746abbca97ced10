"""The page pool of the native kernels: stored form, writes of keys and values, and copies of pages."""

import jax
import jax.numpy as jnp

from rekindle_kernels.cpu import library
from rekindle_kernels.xla import scaled


def empty(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """See `api.empty`. The bits of bfloat16 are stored in uint16, and int8 in rows with scales, as in "xla".

    The memory stays uninitialised, since no kernel reads a place before its first write. So the system allocates memory
    on first use of a page: zeroing a pool of half a gigabyte took a tenth of a warm start.
    """
    library.load()
    if dtype == jnp.int8:
        shape = scaled.stored_shape(shape)
    pool = jax.ShapeDtypeStruct(shape, jnp.uint16 if dtype == jnp.bfloat16 else dtype)
    pages: jax.Array = jax.ffi.ffi_call("rekindle_empty", pool)()
    return pages


def write(pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    """See `api.write`. It works in place if `pages` is donated; a block outside the pool is skipped."""
    return _in_place(
        "rekindle_write", pages, kv.astype(jnp.float32), page_ids.astype(jnp.int32), offsets.astype(jnp.int32)
    )


def read_page(pages: jax.Array, page_id: jax.Array) -> jax.Array:
    """See `api.read_page`. A page outside the pool gives zeros."""
    library.load()
    content = jax.ShapeDtypeStruct(pages.shape[1:], pages.dtype)
    page: jax.Array = jax.ffi.ffi_call("rekindle_read_page", content)(pages, page_id.astype(jnp.int32))
    return page


def write_page(pages: jax.Array, page_id: jax.Array, content: jax.Array) -> jax.Array:
    """See `api.write_page`. It works in place if `pages` is donated; a page outside the pool is skipped."""
    return _in_place("rekindle_write_page", pages, page_id.astype(jnp.int32), content)


def _in_place(target: str, pages: jax.Array, *arguments: jax.Array) -> jax.Array:
    library.load()
    same = jax.ShapeDtypeStruct(pages.shape, pages.dtype)
    result: jax.Array = jax.ffi.ffi_call(target, same, input_output_aliases={0: 0})(pages, *arguments)
    return result
