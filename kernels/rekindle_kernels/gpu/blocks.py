"""Prefill attention on GPU: adjacent blocks share one tile of queries for the tensor cores."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from rekindle_kernels.gpu.refs import Ref, columns_of, load, padded, store, within
from rekindle_kernels.gpu.runs import run_stops
from rekindle_kernels.gpu.softmax import MASKED, Context, Sums, products_dtype
from rekindle_kernels.gpu.target import current
from rekindle_kernels.gpu.tuning import Tile


@dataclass(frozen=True)
class Plan:
    """The static parameters of a call.

    Attributes:
        blocks: blocks of queries in a tile; a power of two.
        block_tokens: tokens in a block, padding included; a power of two.
        members: heads of a group in a tile; a power of two. A larger group takes several tiles.
        keys: positions per loop iteration.
        step: positions from the start of a block to the start of the next one.
        group: query heads per key-value head.
        sides, kv_heads, page_size: the sizes of the pool.
        scale, window, soft_cap: see `api.attend_blocks`.
    """

    blocks: int
    block_tokens: int
    members: int
    keys: int
    step: int
    group: int
    sides: int
    kv_heads: int
    page_size: int
    scale: float
    window: int | None
    soft_cap: float | None

    @classmethod
    def of(
        cls,
        q: jax.Array,
        pages: jax.Array,
        step: int,
        tile: Tile,
        *,
        scale: float,
        window: int | None,
        soft_cap: float | None,
    ) -> "Plan":
        """Split queries, (blocks, block_tokens, heads, head_dim), into tiles of about the tuned size."""
        blocks, block_tokens, heads, _ = q.shape
        sides, kv_heads, page_size = pages.shape[1:4]
        group = heads // kv_heads
        members = min(padded(group), max(1, tile.queries // block_tokens))
        tuned = max(1, min(tile.queries // (block_tokens * members), padded(blocks)))
        per_tile = max(tuned, 16 // (block_tokens * members))  # a dot needs at least 16 rows
        return cls(
            blocks=per_tile,
            block_tokens=block_tokens,
            members=members,
            keys=tile.keys,
            step=step,
            group=group,
            sides=sides,
            kv_heads=kv_heads,
            page_size=page_size,
            scale=scale,
            window=window,
            soft_cap=soft_cap,
        )

    @property
    def queries(self) -> int:
        """The number of rows in a tile: tokens times heads."""
        return self.blocks * self.block_tokens * self.members

    @property
    def member_tiles(self) -> int:
        """The number of tiles for a group."""
        return -(-self.group // self.members)


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

    Cost: a token at position p takes 4 * heads * head_dim * context operations, with `context = min(p + 1, window)`.
    A tile reads the keys and values visible to its last token once, 2 * head_dim * itemsize * context bytes. In
    bfloat16 this is the number of operations divided by the tile's queries, mostly from the L2 cache. Queries and
    results are read and written once, 4 * heads * head_dim bytes each per token.
    """
    blocks, block_tokens, heads, head_dim = q.shape
    q = jnp.pad(q, ((0, 0), (0, padded(block_tokens) - block_tokens), (0, 0), (0, 0)))
    target = current()
    tile = target.tuning().tile("blocks", pages.dtype, head_dim)
    plan = Plan.of(q, pages, block_tokens, tile, scale=scale, window=window, soft_cap=soft_cap)
    tiles = -(-blocks // plan.blocks)
    spare = (0, tiles * plan.blocks - blocks)
    starts, sequences = jnp.pad(block_start, spare, constant_values=-1), jnp.pad(block_sequence, spare)
    stops = run_stops(sequences, starts, block_tokens, plan.blocks)
    until = [] if visible_until is None else [_padded_until(visible_until, spare, plan.block_tokens)]
    sinks = jnp.full(heads, MASKED, jnp.float32) if sinks is None else sinks.astype(jnp.float32)
    longest = min(page_table.shape[1] * plan.page_size, window or page_table.shape[1] * plan.page_size)
    out: jax.Array = pl.pallas_call(
        partial(_attend_tile_until if until else _attend_tile, plan=plan),
        grid=(plan.kv_heads * plan.member_tiles, tiles),
        out_shape=jax.ShapeDtypeStruct((blocks * plan.block_tokens, heads, head_dim), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        cost_estimate=pl.CostEstimate(
            flops=4 * q.size * longest,
            bytes_accessed=q.nbytes
            + 4 * q.size
            + 2 * tiles * plan.kv_heads * plan.member_tiles * head_dim * longest * pages.dtype.itemsize,
            transcendentals=q.size // head_dim * longest,
        ),
        interpret=target.interpret,
        name="attend_blocks",
    )(
        q.reshape(-1, heads, head_dim),
        pages.reshape(-1, pages.shape[-1]),
        page_table,
        sequences,
        starts,
        stops,
        sinks,
        *until,
    )
    return out.reshape(q.shape)[:, :block_tokens]


def _padded_until(until: jax.Array, spare: tuple[int, int], block_tokens: int) -> jax.Array:
    """Return the end of each token's visible positions, (blocks * block_tokens,); the last one's for padding."""
    until = jnp.pad(until, ((0, 0), (0, block_tokens - until.shape[1])), mode="edge")
    return jnp.pad(until, (spare, (0, 0))).reshape(-1)


def _attend_tile(
    q_ref: Ref,
    pool_ref: Ref,
    table_ref: Ref,
    sequence_ref: Ref,
    start_ref: Ref,
    stop_ref: Ref,
    sink_ref: Ref,
    out_ref: Ref,
    *,
    plan: Plan,
    until_ref: Ref | None = None,
) -> None:
    """Compute one tile of queries of one key-value head; the tiles with the longest contexts start first."""
    tile = pl.num_programs(1) - 1 - pl.program_id(1)
    head, member_tile = lax.div(pl.program_id(0), plan.member_tiles), lax.rem(pl.program_id(0), plan.member_tiles)
    tokens, _, head_dim = q_ref.shape
    rows = jnp.arange(plan.queries, dtype=jnp.int32)
    token, member = lax.div(rows, plan.members), member_tile * plan.members + lax.rem(rows, plan.members)
    block = lax.div(token, plan.block_tokens)
    starts = load(start_ref, tile * plan.blocks + block)
    position = starts + lax.rem(token, plan.block_tokens)
    until = None if until_ref is None else load(until_ref, tile * (plan.blocks * plan.block_tokens) + token)
    queries = Queries(block, position, until)

    token = tile * (plan.blocks * plan.block_tokens) + token
    columns = columns_of(head_dim)
    mask = within(columns, head_dim, ((token < tokens) & (member < plan.group))[:, None])
    place = (token[:, None], (head * plan.group + member)[:, None], columns)
    q = load(q_ref, *place, mask=mask).astype(products_dtype(pool_ref.dtype))

    def one_run(i: jax.Array, sums: Sums) -> Sums:
        at = tile * plan.blocks + i
        pages = (pool_ref, table_ref, sequence_ref[at], head, plan.sides, plan.kv_heads, plan.page_size)
        context = Context(*pages, plan.scale, plan.soft_cap)
        stop = stop_ref[at]
        end = stop if until_ref is None else _end_of_run(until_ref, at, start_ref[at], stop, plan)
        return _visit_run(sums, q, queries, context, i, start_ref[at], stop, end, plan)

    sums = lax.fori_loop(0, plan.blocks, one_run, Sums.empty(*q.shape))
    sink = load(sink_ref, head * plan.group + member, mask=member < plan.group)
    store(out_ref, *place, value=sums.output(sink), mask=mask)


def _attend_tile_until(
    q_ref: Ref,
    pool_ref: Ref,
    table_ref: Ref,
    sequence_ref: Ref,
    start_ref: Ref,
    stop_ref: Ref,
    sink_ref: Ref,
    until_ref: Ref,
    out_ref: Ref,
    *,
    plan: Plan,
) -> None:
    """Compute `_attend_tile` with the end of each token's visible positions, (tokens,), as one more input."""
    inputs = (q_ref, pool_ref, table_ref, sequence_ref, start_ref, stop_ref, sink_ref)
    _attend_tile(*inputs, out_ref, plan=plan, until_ref=until_ref)


def _end_of_run(until_ref: Ref, block: jax.Array, start: jax.Array, stop: jax.Array, plan: Plan) -> jax.Array:
    """Return the end of the positions visible to the last token of a run; 0 if `stop` is 0."""
    last = jnp.maximum(block + lax.div(stop - start, plan.step), 1) * plan.block_tokens - 1
    end: jax.Array = jnp.where(stop > 0, until_ref[last], 0)
    return end


@dataclass(frozen=True)
class Queries:
    """The positions of a tile's queries.

    Attributes:
        block: (queries,) int32, the block in the tile.
        position: (queries,) int32, the position in the sequence; arbitrary for a padding block.
        until: (queries,) int32, the end of the visible positions; None for `position + 1`.
    """

    block: jax.Array
    position: jax.Array
    until: jax.Array | None


def _visit_run(
    sums: Sums,
    q: jax.Array,
    queries: Queries,
    context: Context,
    block: jax.Array,
    start: jax.Array,
    stop: jax.Array,
    end: jax.Array,
    plan: Plan,
) -> Sums:
    """Add the keys and values of one run, up to `end`, to the sums of its queries; add nothing if `stop` is 0."""
    blocks = lax.div(stop - start, plan.step)
    in_run = (queries.block >= block) & (queries.block < block + blocks)
    first = jnp.int32(0) if plan.window is None else jnp.minimum(jnp.maximum(start + 1 - plan.window, 0), stop)
    tiles = lax.div(first, plan.keys), pl.cdiv(end, plan.keys)
    # From `clear` to `clear_end`, most of a long context, all keys are visible to all queries: no mask is needed.
    clear = jnp.int32(0) if plan.window is None else pl.cdiv(jnp.maximum(stop - plan.window, 0), plan.keys)
    clear_end = jnp.where(blocks == plan.blocks, lax.div(jnp.minimum(start + 1, stop), plan.keys), clear)
    clear_end = jnp.maximum(clear, clear_end)

    def visit_unmasked(i: jax.Array, sums: Sums) -> Sums:
        return context.visit(sums, q, i * plan.keys + jnp.arange(plan.keys, dtype=jnp.int32), None, None)

    def visit_masked(i: jax.Array, sums: Sums) -> Sums:
        positions = i * plan.keys + jnp.arange(plan.keys, dtype=jnp.int32)
        if queries.until is None:
            mask = in_run[:, None] & (positions[None] <= queries.position[:, None])
        else:
            mask = in_run[:, None] & (positions[None] < queries.until[:, None])
        if plan.window is not None:
            mask &= positions[None] > queries.position[:, None] - plan.window
        readable = (positions >= first) & (positions < end)
        new = context.visit(sums, q, positions, readable, mask)
        # A weight of 0 would not hide a NaN of another sequence.
        peak, total = jnp.where(in_run, new.peak, sums.peak), jnp.where(in_run, new.total, sums.total)
        return Sums(peak, total, jnp.where(in_run[:, None], new.weighted, sums.weighted))

    if plan.window is not None:
        sums = lax.fori_loop(tiles[0], clear, visit_masked, sums)
    sums = lax.fori_loop(clear, clear_end, visit_unmasked, sums)
    return Sums(*lax.fori_loop(clear_end, tiles[1], visit_masked, sums))
