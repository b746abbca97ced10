"""Prefill attention on TPU: a grid over windows of blocks, with one run for each sequence in a window."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rekindle_kernels.tpu.form import Pool, narrow, page_bytes, widen
from rekindle_kernels.tpu.softmax import MASKED, cap, finish, fold, product
from rekindle_kernels.tpu.stream import Ref, Runs, Stream
from rekindle_kernels.tpu.tuning import tuning


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
    """See `api.attend_blocks`.

    Cost of a run with end position C (H heads of dimension D, page size P) in a window of W tokens: bytes
    `ceil(C / P) * page_bytes` of pages in the form of `form`, and `(itemsize + 4) * H * width * W` of queries and
    output; operations `4 * H * D * W * C`, and `H * W * C` exponentials, because the whole window is computed for each
    run in it. The estimate for the compiler assumes one run per window, and half of the page table as C.
    """
    blocks, tokens, heads, head_dim = q.shape
    _, _, kv_heads, page_size, width = pages.shape
    group = heads // kv_heads
    window_blocks = max(1, min(tuning().window_rows // group // tokens, blocks))
    windows = -(-blocks // window_blocks)
    table = jnp.clip(page_table, 0, len(pages) - 1)
    first, stop = _runs(block_sequence, block_start, tokens, window_blocks, window)
    last = stop if visible_until is None else _ends(stop, block_start, visible_until)
    runs = Runs.of(first, last, block_sequence, table, window_blocks)
    spare = (0, len(runs.first) - blocks)
    starts, stops = jnp.pad(block_start, spare), jnp.pad(stop, spare)
    sinks = jnp.full(heads, MASKED, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    grouped = widen((q * scale).astype(pages.dtype), pages).reshape(blocks, tokens, kv_heads, group, width)
    grouped = jnp.pad(grouped, ((0, windows * window_blocks - blocks), *((0, 0),) * 4))
    grouped = grouped.reshape(windows, -1, *grouped.shape[2:]).transpose(0, 2, 3, 1, 4)
    rows = group * window_blocks * tokens
    shape = (windows, kv_heads, rows, width)
    tile_pages = max(1, min(tuning().block_tile_bytes // page_bytes(pages), tuning().block_tile // page_size))
    buffer = (tuning().block_stages, tile_pages, *pages.shape[1:])
    of_window = pl.BlockSpec((1, *shape[1:]), lambda step, *_: (step, 0, 0, 0))
    until, ends = [], []
    if visible_until is not None:
        padded = jnp.pad(visible_until, (spare, (0, 0))).reshape(windows, 1, -1)
        until = [jnp.broadcast_to(padded, (windows, group, padded.shape[2])).reshape(windows, rows, 1)]
        ends = [pl.BlockSpec((1, rows, 1), lambda step, *_: (step, 0, 0))]
    out: jax.Array = pl.pallas_call(
        functools.partial(_kernel, tokens, table.shape[1], window, soft_cap, bool(until)),
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(runs) + 2 + len(until),
            grid=(windows,),
            in_specs=[of_window, pl.BlockSpec(memory_space=pl.ANY), *ends],
            out_specs=of_window,
            scratch_shapes=[
                pltpu.VMEM((kv_heads, rows, 1), jnp.float32),
                pltpu.VMEM((kv_heads, rows, 1), jnp.float32),
                pltpu.VMEM(buffer, pages.dtype),
                pltpu.SemaphoreType.DMA(buffer[:1]),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=tuning().vmem_limit_bytes
        ),
        cost_estimate=cost(windows, window_blocks * tokens, heads, head_dim, table.shape[1] * page_size // 2, pages),
        name="rekindle_attend_blocks",
    )(*runs, starts, sinks, *[stops] * len(until), grouped.reshape(shape), pages, *until)
    out = narrow(out, pages, head_dim).reshape(windows, kv_heads, group, -1, head_dim).transpose(0, 3, 1, 2, 4)
    return out.reshape(-1, tokens, heads, head_dim)[:blocks]


def _runs(
    sequence: jax.Array, start: jax.Array, tokens: int, window_blocks: int, window: int | None
) -> tuple[jax.Array, jax.Array]:
    """Return first and last of `Runs`, each (blocks,).

    The values of a run are at its first block; the other blocks are empty runs. A run ends at the end of its window.
    """
    places = jnp.arange(len(start), dtype=jnp.int32)
    continues = (sequence == jnp.roll(sequence, 1)) & (start == jnp.roll(start, 1) + tokens)
    begins = (start < 0) | ~continues | (places % window_blocks == 0)
    nexts = lax.cummin(jnp.where(begins, places, len(start)), reverse=True)
    nexts = jnp.append(nexts[1:], jnp.int32(len(start)))
    busy = begins & (start >= 0)
    first = jnp.zeros_like(start) if window is None else jnp.maximum(start + 1 - window, 0)
    last = start + (nexts - places) * tokens
    return jnp.where(busy, first, 0), jnp.where(busy, last, 0)


def _ends(stop: jax.Array, start: jax.Array, until: jax.Array) -> jax.Array:
    """Return the end of the positions visible to the last token of each run, (blocks,); 0 for an empty run."""
    tokens, places = until.shape[1], jnp.arange(len(stop), dtype=jnp.int32)
    last = jnp.clip(places + (stop - start) // tokens - 1, 0, len(stop) - 1)
    return jnp.where(stop > 0, until[last, -1], 0)


def cost(windows: int, tokens: int, heads: int, head_dim: int, context: int, pages: Pool) -> pl.CostEstimate:
    """Estimate the cost of windows with one run of this context each, by the formula of `attend_blocks`."""
    _, _, _, page_size, width = pages.shape
    queries = (pages.dtype.itemsize + 4) * heads * width * tokens
    return pl.CostEstimate(
        flops=4 * windows * tokens * heads * head_dim * context,
        transcendentals=windows * tokens * heads * context,
        bytes_accessed=windows * (-(-context // page_size) * page_bytes(pages) + queries),
    )


def _kernel(
    tokens: int,
    pages_per_sequence: int,
    window: int | None,
    soft_cap: float | None,
    is_shown: bool,
    first: Ref,
    last: Ref,
    owner: Ref,
    following: Ref,
    table: Ref,
    start: Ref,
    sinks: Ref,
    *refs: Ref,
) -> None:
    """Compute one window: q and out are (1, kv_heads, rows, width); rows are ordered by grouped head, then token.

    With `is_shown`, further inputs are the end of each run's queries, and until, (1, rows, 1), the end of the positions
    visible to each row.
    """
    stop, q, pages, until, *others = refs if is_shown else (last, *refs[:2], None, *refs[2:])
    out, peaks, totals, buffer, arrived = others
    _, kv_heads, rows, _ = q.shape
    blocks = first.shape[0] // pl.num_programs(0)
    begin = pl.program_id(0) * blocks
    runs = Runs(first, last, owner, following, table)
    stream = Stream(runs, pages, buffer, arrived, pages_per_sequence, begin + blocks)
    out[...] = jnp.zeros_like(out)
    totals[...] = jnp.zeros_like(totals)
    peaks[...] = jnp.full(peaks.shape, MASKED, jnp.float32)

    def one_run(block: jax.Array, carry: Any) -> Any:
        run = begin + block

        def one_tile(tile: jax.Array, carry: Any) -> Any:
            count, cursor = carry
            stage, cursor = stream.load(run, tile, count, cursor)
            shape = (rows, stream.tile_tokens)
            token = lax.rem(lax.broadcasted_iota(jnp.int32, shape, 0), blocks * tokens) - block * tokens
            query = start[run] + token
            key = tile * stream.tile_tokens + lax.broadcasted_iota(jnp.int32, shape, 1)
            mask = (token >= 0) & (query < stop[run]) & (key <= query if until is None else key < until[0])
            if window is not None:
                mask &= key > query - window

            def one_head(head: jax.Array, _: None) -> None:
                scores = cap(product(q[0, head], stream.keys(stage, head), (1, 1)), soft_cap)
                peak, total, shrink, weights = fold(scores, mask, peaks[head], totals[head])
                part = product(weights.astype(buffer.dtype), stream.values(stage, head), (1, 0))
                peaks[head], totals[head] = peak, total
                out[0, head] = out[0, head] * shrink + part

            lax.fori_loop(0, kv_heads, one_head, None)
            return count + 1, cursor

        return lax.fori_loop(*stream.tiles(run), one_tile, carry)

    lax.fori_loop(0, blocks, one_run, (jnp.int32(0), stream.open(begin)))

    def finish_head(head: jax.Array, _: None) -> None:
        sink, peak = _sink_of_rows(sinks, head, kv_heads, rows), peaks[head]
        out[0, head] = finish(out[0, head], peak, totals[head] + jnp.exp(sink - peak))

    lax.fori_loop(0, kv_heads, finish_head, None)


def _sink_of_rows(sinks: Ref, kv_head: jax.Array, kv_heads: int, rows: int) -> jax.Array:
    """Return the sink of each row of a key-value head, (rows, 1) float32; the rows of a head are adjacent."""
    group = sinks.shape[0] // kv_heads
    member = lax.div(lax.broadcasted_iota(jnp.int32, (rows, 1), 0), rows // group)
    return functools.reduce(
        lambda scores, i: jnp.where(member == i, sinks[kv_head * group + i], scores),
        range(group),
        jnp.full((rows, 1), MASKED, jnp.float32),
    )
