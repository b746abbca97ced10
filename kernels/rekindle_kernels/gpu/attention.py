"""Attention on GPU: Pallas kernels, and XLA for heads whose tiles do not fit into registers."""

from typing import Final

import jax

from rekindle_kernels.gpu import blocks, rows
from rekindle_kernels.gpu.target import current
from rekindle_kernels.xla import attention as portable

MAX_HEAD_DIM: Final = 256
"""The largest head size of the Pallas kernels."""


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
    """See `api.attend_rows`."""
    attend = rows.attend_rows if q.shape[-1] <= MAX_HEAD_DIM else portable.attend_rows
    return attend(q, pages, page_table, visible, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks)


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
    """See `api.attend_blocks`."""
    where = page_table, block_sequence, block_start, visible_until
    is_plain = (visible_until, window, soft_cap, sinks) == (None,) * 4
    if is_plain and (tile := current().tuning().find("wgmma", pages.dtype, q.shape[-1])) is not None:
        from rekindle_kernels.gpu import warpgroups  # slow to import, and needed on few devices

        if warpgroups.unsupported_reason(q, pages, tile) is None:
            return warpgroups.attend_blocks(q, pages, *where[:3], tile, scale=scale)
    attend = blocks.attend_blocks if q.shape[-1] <= MAX_HEAD_DIM else portable.attend_blocks
    return attend(q, pages, *where, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks)
