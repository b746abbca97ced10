"""The page pool in portable XLA: stored form, writes of keys and values, and copies of pages."""

import jax
import jax.numpy as jnp
from jax import lax

from rekindle_kernels.xla import scaled


def empty(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """See `api.empty`. The bits of bfloat16 are stored in uint16.

    XLA's CPU backend would convert a whole bfloat16 pool to float32 and back around each update and gather.
    """
    if dtype == jnp.int8:
        return jnp.zeros(scaled.stored_shape(shape), dtype)
    return jnp.zeros(shape, jnp.uint16 if dtype == jnp.bfloat16 else dtype)


def value_dtype(pages: jax.Array) -> jnp.dtype:
    """Return the dtype of computations with the pages, as opposed to the stored dtype."""
    dtype: jnp.dtype = pages.dtype
    if dtype == jnp.int8:
        dtype = jnp.dtype(jnp.float32)
    return jnp.dtype(jnp.bfloat16) if dtype == jnp.uint16 else dtype


def unpack(stored: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Convert stored rows to numbers of `value_dtype`, and the factor of each row; None for factors of 1.

    Rows of int8 with one scale have it as the factor: it costs a product for each position, not for each number.
    """
    if stored.dtype == jnp.int8:
        codes, scales = scaled.split(stored)
        if scales.shape[-1] > 1:
            return scaled.dequantize(stored), None
        return codes.astype(value_dtype(stored)), scales[..., 0]
    return lax.bitcast_convert_type(stored, value_dtype(stored)), None


def stored_form(kv: jax.Array, pages: jax.Array) -> jax.Array:
    """Convert keys and values (..., head_dim) to the stored form of the pages."""
    if pages.dtype == jnp.int8:
        return scaled.quantize(kv)
    return lax.bitcast_convert_type(kv.astype(value_dtype(pages)), pages.dtype)


def write(pages: jax.Array, kv: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    """See `api.write`. It works in place if `pages` is donated.

    On CPU a loop of slice updates takes a third of a scatter's time for single tokens, and twice its time for blocks.
    """
    stored = stored_form(kv, pages)
    if kv.shape[3] == 1 or len(kv) == 1:  # XLA converts a scatter of one block to a slice update, see below
        return _write_one_by_one(pages, stored, page_ids, offsets)
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2, 3, 4), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 3)
    )
    indices = jnp.stack([page_ids, offsets], axis=1)
    return lax.scatter(pages, indices, stored, dims, mode="promise_in_bounds")


def _write_one_by_one(pages: jax.Array, stored: jax.Array, page_ids: jax.Array, offsets: jax.Array) -> jax.Array:
    def body(i: jax.Array, pages: jax.Array) -> jax.Array:
        block = lax.dynamic_slice_in_dim(stored, i, 1, 0)
        return lax.dynamic_update_slice(pages, block, (page_ids[i], 0, 0, offsets[i], 0))

    # XLA would inline a loop of one iteration, fuse the update into each reader of the pages, and copy the pool twice.
    result: jax.Array = lax.fori_loop(0, lax.optimization_barrier(jnp.int32(len(stored))), body, pages)
    return result


def read_page(pages: jax.Array, page_id: jax.Array) -> jax.Array:
    """See `api.read_page`."""
    content: jax.Array = lax.dynamic_index_in_dim(pages, page_id, keepdims=False)
    return content


def write_page(pages: jax.Array, page_id: jax.Array, content: jax.Array) -> jax.Array:
    """See `api.write_page`. It works in place if `pages` is donated."""
    result: jax.Array = lax.dynamic_update_index_in_dim(pages, content, page_id, 0)
    return result
