"""Decode attention on GPU: each row's context is split among programs, and a second kernel joins the parts."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from rekindle_kernels.gpu.refs import Ref, columns_of, load, padded, store, within
from rekindle_kernels.gpu.softmax import LOG2E, MASKED, Context, Sums, products_dtype
from rekindle_kernels.gpu.target import current
from rekindle_kernels.gpu.tuning import Tile

MAX_SPLITS = 64


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
    """See `api.attend_rows`.

    Cost of a row with `context` visible positions: each key and value is read once, 2 * kv_heads * head_dim * itemsize
    * context bytes, for 4 * heads * head_dim * context operations. The parts are written and read once, 8 * heads *
    head_dim * splits bytes.
    """
    rows, heads, head_dim = q.shape
    sides, kv_heads, page_size = pages.shape[1:4]
    longest = min(page_table.shape[1] * page_size, window or page_table.shape[1] * page_size)
    target = current()
    tuned = target.tuning()
    tile = tuned.tile("rows", pages.dtype, head_dim)
    splits = _splits(rows * kv_heads, tuned.programs, -(-longest // tile.keys))
    outputs = [
        jax.ShapeDtypeStruct((rows, heads, splits, head_dim), jnp.float32),
        jax.ShapeDtypeStruct((rows, heads, splits), jnp.float32),
    ]
    kernel = partial(
        _attend_part,
        sides=sides,
        kv_heads=kv_heads,
        page_size=page_size,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        tile=tile,
    )
    parts, weights = pl.pallas_call(
        kernel,
        grid=(kv_heads, splits, rows),
        out_shape=outputs,
        compiler_params=plgpu.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        cost_estimate=pl.CostEstimate(
            flops=4 * rows * heads * head_dim * longest,
            bytes_accessed=2 * rows * kv_heads * head_dim * longest * pages.dtype.itemsize
            + q.nbytes
            + 4 * rows * heads * splits * (head_dim + 1),
            transcendentals=rows * heads * longest,
        ),
        interpret=target.interpret,
        name="attend_rows",
    )(q, pages.reshape(-1, pages.shape[-1]), page_table, visible)
    out: jax.Array = parts[:, :, 0] if splits == 1 else _join(parts, weights)
    if sinks is None:
        return out
    return out * jax.nn.sigmoid(jax.nn.logsumexp(weights / LOG2E, axis=2) - sinks[None])[:, :, None]


def _splits(programs: int, target: int, tiles: int) -> int:
    """Return the number of parts of a context, a power of two: for `target` programs, with at least a tile each."""
    return min(padded(-(-target // programs)), padded(tiles), MAX_SPLITS)


def _attend_part(
    q_ref: Ref,
    pool_ref: Ref,
    table_ref: Ref,
    visible_ref: Ref,
    out_ref: Ref,
    weight_ref: Ref,
    *,
    sides: int,
    kv_heads: int,
    page_size: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    tile: Tile,
) -> None:
    """Compute one part of the context of one row and key-value head; the query tile is the group of heads."""
    head, split, row = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    _, heads, head_dim = q_ref.shape
    group = heads // kv_heads
    members = jnp.arange(padded(group, tile.queries), dtype=jnp.int32)
    real = members < group
    columns = columns_of(head_dim)
    mask = within(columns, head_dim, real[:, None])
    places = head * group + members
    q = load(q_ref, row, places[:, None], columns, mask=mask).astype(products_dtype(pool_ref.dtype))

    last = visible_ref[row]
    first = jnp.int32(0) if window is None else jnp.maximum(last - window, 0)
    first_tile = lax.div(first, tile.keys)
    tiles = pl.cdiv(last, tile.keys) - first_tile
    share = pl.cdiv(tiles, weight_ref.shape[2])
    context = Context(pool_ref, table_ref, row, head, sides, kv_heads, page_size, scale, soft_cap)

    def body(i: jax.Array, sums: Sums) -> Sums:
        positions = i * tile.keys + jnp.arange(tile.keys, dtype=jnp.int32)
        readable = (positions >= first) & (positions < last)
        return context.visit(sums, q, positions, readable, readable[None])

    start = first_tile + split * share
    stop = first_tile + jnp.minimum((split + 1) * share, tiles)
    sums = lax.fori_loop(start, stop, body, Sums.empty(q.shape[0], q.shape[1]))
    store(out_ref, row, places[:, None], split, columns, value=sums.output(), mask=mask)
    weight = jnp.where(sums.total == 0.0, MASKED, sums.peak + jnp.log2(jnp.where(sums.total == 0.0, 1.0, sums.total)))
    store(weight_ref, row, places, split, value=weight, mask=real)


def _join(parts: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the mean of the parts, each weighted by 2 ** weight.

    Cost: both are read once and the result is written once, 4 * rows * heads * (splits * (head_dim + 1) + head_dim)
    bytes.

    Args:
        parts: (rows, heads, splits, head_dim) float32.
        weights: (rows, heads, splits) float32; `MASKED` for a part without visible positions.

    Returns:
        (rows, heads, head_dim) float32; zeros if no part has visible positions.
    """
    rows, heads, splits, head_dim = parts.shape
    out: jax.Array = pl.pallas_call(
        _join_parts,
        grid=(heads, rows),
        out_shape=jax.ShapeDtypeStruct((rows, heads, head_dim), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=2, num_stages=1),
        cost_estimate=pl.CostEstimate(
            flops=2 * parts.size,
            bytes_accessed=4 * (parts.size + weights.size + rows * heads * head_dim),
            transcendentals=weights.size,
        ),
        interpret=current().interpret,
        name="join_rows",
    )(parts, weights)
    return out


def _join_parts(parts_ref: Ref, weights_ref: Ref, out_ref: Ref) -> None:
    """Join the parts of one head of one row."""
    head, row = pl.program_id(0), pl.program_id(1)
    _, _, splits, head_dim = parts_ref.shape
    places = jnp.arange(splits, dtype=jnp.int32)
    columns = columns_of(head_dim)
    weights = load(weights_ref, row, head, places)
    weights = jnp.where(weights == MASKED, 0.0, jnp.exp2(weights - weights.max(axis=0)))
    total = weights.sum(axis=0)
    parts = load(parts_ref, row, head, places[:, None], columns, mask=within(columns, head_dim))
    mean = (parts * weights[:, None]).sum(axis=0) / jnp.where(total == 0.0, 1.0, total)
    store(out_ref, row, head, columns, value=mean[None], mask=within(columns, head_dim))
