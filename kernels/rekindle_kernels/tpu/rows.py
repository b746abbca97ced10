"""Decode attention on TPU: a grid over groups of rows; each row is a run of tiles with all key-value heads."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rekindle_kernels.tpu.form import LANES, Pool, narrow, page_bytes, widen
from rekindle_kernels.tpu.softmax import MASKED, cap, finish, fold, product
from rekindle_kernels.tpu.stream import Ref, Runs, Stream
from rekindle_kernels.tpu.tuning import tuning

SUBLANES = 8
"""Queries of a key-value head are padded to a multiple of this number of rows."""


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

    Cost of a row with context C (at most the window), H heads of dimension D, page size P: bytes
    `ceil(C / P) * page_bytes` of pages in the form of `form`, and `8 * H * width` of queries and output; operations
    `4 * H * D * C`, and `H * C` exponentials. The estimate for the compiler takes the whole page table as C.

    If there are fewer rows than cores, the context is split into parts computed as separate rows. Their results are
    weighted by their sums of exponentials. Sinks are one more part, with zeros as its result.
    """
    rows = len(q)
    table = jnp.clip(page_table, 0, len(pages) - 1)
    first = jnp.zeros_like(visible) if window is None else jnp.maximum(visible - window, 0)
    owner = jnp.arange(rows, dtype=jnp.int32)
    splits = max(1, tuning().cores // rows)
    if splits == 1 and sinks is None:
        return _attend(q, pages, table, (first, visible, owner), scale, soft_cap, with_scores=False)[0]
    tile = _tile_pages(pages) * pages.shape[3]
    begin = first // tile * tile
    part = pl.cdiv(pl.cdiv(visible - begin, tile), splits) * tile
    begins = begin[None] + jnp.arange(splits, dtype=jnp.int32)[:, None] * part[None]
    ends = jnp.minimum(begins + part[None], visible[None]).reshape(-1)
    ranges = (jnp.maximum(begins, first[None]).reshape(-1), ends, jnp.tile(owner, splits))
    out, score = _attend(jnp.tile(q, (splits, 1, 1)), pages, table, ranges, scale, soft_cap, with_scores=True)
    score = score.reshape(splits, rows, -1, 1)
    if sinks is not None:
        score = jnp.concatenate([score, jnp.broadcast_to(sinks[None, None, :, None], (1, *score.shape[1:]))])
    shares = jax.nn.softmax(score, axis=0)[:splits]
    return (out.reshape(splits, *q.shape) * shares).sum(0)


def _tile_pages(pages: jax.Array) -> int:
    return max(1, min(tuning().row_tile_bytes // page_bytes(pages), tuning().row_tile // pages.shape[3]))


def _attend(
    q: jax.Array,
    pages: jax.Array,
    table: jax.Array,
    ranges: tuple[jax.Array, jax.Array, jax.Array],
    scale: float,
    soft_cap: float | None,
    *,
    with_scores: bool,
) -> tuple[jax.Array, jax.Array]:
    """Return the weighted mean of each run, (runs, heads, head_dim), and its score, (runs, heads).

    The score is the logarithm of the run's sum of exponentials; it is undefined unless `with_scores`. `ranges` are
    first, last and owner of `Runs`.
    """
    rows, heads, head_dim = q.shape
    _, _, kv_heads, page_size, width = pages.shape
    group = heads // kv_heads
    padded = -(-group // SUBLANES) * SUBLANES
    step_rows = min(tuning().step_rows, -(-rows // tuning().cores))
    runs = Runs.of(*ranges, table, step_rows)
    grouped = widen(q.astype(jnp.float32) * scale, pages).reshape(rows, kv_heads, group, width)
    spare = ((0, len(runs.first) - rows), (0, 0), (0, padded - group), (0, 0))
    grouped = jnp.pad(grouped, spare).reshape(-1, kv_heads * padded, width)
    out_width = width + LANES * with_scores
    buffer = (tuning().row_stages, _tile_pages(pages), *pages.shape[1:])

    def block(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((step_rows, kv_heads * padded, width), lambda step, *_: (step, 0, 0))

    out: jax.Array = pl.pallas_call(
        functools.partial(_kernel, table.shape[1], soft_cap),
        out_shape=jax.ShapeDtypeStruct((*grouped.shape[:2], out_width), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(runs),
            grid=(len(runs.first) // step_rows,),
            in_specs=[block(width), pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=block(out_width),
            scratch_shapes=[pltpu.VMEM(buffer, pages.dtype), pltpu.SemaphoreType.DMA(buffer[:1])],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=tuning().vmem_limit_bytes
        ),
        cost_estimate=cost(rows, heads, head_dim, table.shape[1] * page_size, pages),
        name="rekindle_attend_rows",
    )(*runs, grouped, pages)
    out = out.reshape(-1, kv_heads, padded, out_width)[:rows, :, :group].reshape(rows, heads, out_width)
    return narrow(out, pages, head_dim), out[..., -1]


def cost(rows: int, heads: int, head_dim: int, context: int, pages: Pool) -> pl.CostEstimate:
    """Estimate the cost of rows with this context, by the formula of `attend_rows`."""
    _, _, _, page_size, width = pages.shape
    return pl.CostEstimate(
        flops=4 * rows * heads * head_dim * context,
        transcendentals=rows * heads * context,
        bytes_accessed=rows * (-(-context // page_size) * page_bytes(pages) + 8 * heads * width),
    )


def _kernel(
    pages_per_sequence: int,
    soft_cap: float | None,
    first: Ref,
    last: Ref,
    owner: Ref,
    following: Ref,
    table: Ref,
    q: Ref,
    pages: Ref,
    out: Ref,
    buffer: Ref,
    arrived: Ref,
) -> None:
    """Compute one step: q is (step_rows, kv_heads * padded group, width), out the same or wider by LANES scores."""
    step_rows, queries, width = q.shape
    kv_heads = buffer.shape[3]
    begin = pl.program_id(0) * step_rows
    runs = Runs(first, last, owner, following, table)
    stream = Stream(runs, pages, buffer, arrived, pages_per_sequence, begin + step_rows)

    def one_row(row: jax.Array, carry: Any) -> Any:
        run = begin + row
        grouped = q[row].astype(buffer.dtype).reshape(kv_heads, -1, width)

        def one_tile(tile: jax.Array, carry: Any) -> Any:
            (count, cursor), (peak, total, weighted) = carry
            stage, cursor = stream.load(run, tile, count, cursor)
            parts = [product(grouped[head], stream.keys(stage, head), (1, 1)) for head in range(kv_heads)]
            scores = cap(jnp.concatenate(parts), soft_cap)
            positions = tile * stream.tile_tokens + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            mask = (positions >= first[run]) & (positions < last[run])
            peak, total, shrink, weights = fold(scores, mask, peak, total)
            shares = weights.astype(buffer.dtype).reshape(kv_heads, -1, stream.tile_tokens)
            parts = [product(shares[head], stream.values(stage, head), (1, 0)) for head in range(kv_heads)]
            return (count + 1, cursor), (peak, total, weighted * shrink + jnp.concatenate(parts))

        sums = (
            jnp.full((queries, 1), MASKED, jnp.float32),
            jnp.zeros((queries, 1), jnp.float32),
            jnp.zeros((queries, width), jnp.float32),
        )
        carry, (peak, total, weighted) = lax.fori_loop(*stream.tiles(run), one_tile, (carry, sums))
        out[row, :, :width] = finish(weighted, peak, total)
        if out.shape[-1] > width:
            score = jnp.where(peak <= MASKED / 2, MASKED, peak + jnp.log(total))
            out[row, :, width:] = jnp.broadcast_to(score, (queries, LANES))
        return carry

    lax.fori_loop(0, step_rows, one_row, (jnp.int32(0), stream.open(begin)))
