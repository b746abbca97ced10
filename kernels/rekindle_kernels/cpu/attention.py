"""Paged attention of the native kernels."""

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels.cpu import library


def attend_rows(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    visible: jax.Array,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    """See `api.attend_rows`. A row's bits are independent of other rows, and the same in `attend_blocks`."""
    return _attend("rekindle_attend_rows", q, (pages, page_table, visible), scale, window, soft_cap, sinks)


def attend_blocks(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    block_sequence: jax.Array,
    block_start: jax.Array,
    visible_until: jax.Array | None,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    """See `api.attend_blocks`. A query's bits are independent of others, and the same in `attend_rows`."""
    arrays = (pages, page_table, block_sequence, block_start)
    if visible_until is None:
        return _attend("rekindle_attend_blocks", q, arrays, scale, window, soft_cap, sinks)
    further = (*arrays, visible_until.reshape(-1))
    return _attend("rekindle_attend_blocks_until", q, further, scale, window, soft_cap, sinks)


def _attend(
    target: str,
    q: jax.Array,
    arrays: tuple[jax.Array, ...],
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    library.load()
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(q.shape, jnp.float32))
    options = {
        "scale": np.float32(scale),
        "window": np.int64(window or 0),
        "soft_cap": np.float32(soft_cap or 0.0),
    }
    pages, *numbers = arrays
    floats = jnp.zeros(0, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    integers = (each.astype(jnp.int32) for each in numbers)
    out: jax.Array = call(q.astype(jnp.float32), pages, *integers, floats, **options)
    return out
