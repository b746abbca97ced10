"""Prefill attention on Hopper: one warpgroup copies keys and values into shared memory, two others multiply them.

The design of FlashAttention-3 (Shah et al., 2024, arXiv:2407.08608), over pages, without the overlap within a
warpgroup: one multiplies during the softmax of the other.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as mgpu

from rekindle_kernels.gpu.instructions import Instructions
from rekindle_kernels.gpu.refs import Ref
from rekindle_kernels.gpu.runs import last_pages, run_stops
from rekindle_kernels.gpu.softmax import LOG2E, MASKED, Sums
from rekindle_kernels.gpu.target import current
from rekindle_kernels.gpu.tuning import Tile

MULTIPLYING: Final = 2
"""The warpgroups with products."""
ROWS: Final = 64
"""The rows of queries, tokens times heads, of a warpgroup and of one instruction."""
REGISTERS: Final = (232, 40)
"""The registers of a thread with products, and of a thread with copies."""


@dataclass(frozen=True)
class Plan:
    """The static parameters of a call.

    Attributes:
        blocks: blocks of queries in a tile of both warpgroups.
        block_tokens: tokens in a block; a power of two.
        members: heads of a group in a tile: a power of two, and a divisor of the group.
        member_tiles: the number of tiles for a group.
        keys: positions per tile of keys; whole pages.
        stages: tiles of keys in shared memory.
        sides, kv_heads, page_size: the sizes of the pool.
        scale: see `api.attend_blocks`.
        interpret: see `Target`.
    """

    blocks: int
    block_tokens: int
    members: int
    member_tiles: int
    keys: int
    stages: int
    sides: int
    kv_heads: int
    page_size: int
    scale: float
    interpret: bool

    @classmethod
    def of(cls, q: jax.Array, pages: jax.Array, tile: Tile, *, scale: float) -> "Plan":
        """Split queries, (blocks, block_tokens, heads, head_dim), into tiles."""
        _, block_tokens, heads, _ = q.shape
        sides, kv_heads, page_size = pages.shape[1:4]
        group = heads // kv_heads
        members = min(group & -group, MULTIPLYING * ROWS // block_tokens)
        return cls(
            blocks=MULTIPLYING * ROWS // (block_tokens * members),
            block_tokens=block_tokens,
            members=members,
            member_tiles=group // members,
            keys=tile.keys,
            stages=tile.stages,
            sides=sides,
            kv_heads=kv_heads,
            page_size=page_size,
            scale=scale,
            interpret=current().interpret,
        )

    @property
    def pages(self) -> int:
        """The number of pages in a tile of keys."""
        return self.keys // self.page_size


Shaped = jax.Array | jax.ShapeDtypeStruct


def unsupported_reason(q: Shaped, pages: Shaped, tile: Tile) -> str | None:
    """Return the reason against the kernel for a call without options, or None if there is none."""
    _, block_tokens, _, head_dim = q.shape
    if pages.dtype != jnp.bfloat16:
        return "pages must be of bfloat16"
    if head_dim not in (64, 128):
        return "head_dim must be 64 or 128"  # the sums of wider heads do not fit into registers
    if pages.shape[3] % 8 or tile.keys % pages.shape[3]:
        return f"pages must have a multiple of 8 tokens that divides {tile.keys}"
    if MULTIPLYING * ROWS % block_tokens:
        return f"blocks must have a number of tokens that divides {MULTIPLYING * ROWS}"
    if jax.__version_info__ < (0, 10):
        return f"it needs JAX 0.10, this is {jax.__version__}"  # for its Mosaic of GPUs
    return None


def attend_blocks(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    block_sequence: jax.Array,
    block_start: jax.Array,
    tile: Tile,
    *,
    scale: float,
) -> jax.Array:
    """See `api.attend_blocks`, without options.

    Cost: as of `blocks.attend_blocks`, with a tile of 128 queries, and a copy of the queries, of the results, and of a
    page per sequence.
    """
    blocks, block_tokens, heads, head_dim = q.shape
    plan = Plan.of(q, pages, tile, scale=scale)
    tiles, tile_heads = -(-blocks // plan.blocks), plan.kv_heads * plan.member_tiles
    spare = (0, tiles * plan.blocks - blocks)
    starts, sequences = jnp.pad(block_start, spare, constant_values=-1), jnp.pad(block_sequence, spare)
    stops = run_stops(sequences, starts, block_tokens, plan.blocks)
    last, copies = last_pages(pages, page_table, sequences, starts, block_tokens)
    rows = jnp.pad(q.astype(pages.dtype), (spare, (0, 0), (0, 0), (0, 0)))
    rows = rows.reshape(-1, tile_heads, plan.members, head_dim).swapaxes(0, 1).reshape(tile_heads, -1, head_dim)
    arrays = (rows, pages.reshape(-1, head_dim), copies.reshape(-1, head_dim))
    out: jax.Array = mgpu.kernel(
        partial(_attend_tile, plan=plan),
        out_type=jax.ShapeDtypeStruct(rows.shape, jnp.float32),
        scratch_types=tuple(_buffers(plan, head_dim, pages.dtype)),
        grid=(tile_heads, tiles),
        grid_names=("head", "tile"),
        num_threads=MULTIPLYING + 1,
        thread_name="warpgroup",
        compiler_params=mgpu.CompilerParams(approx_math=True),
        kernel_name="attend_blocks",
    )(*arrays, page_table, last, sequences, starts, stops)
    out = out.reshape(tile_heads, -1, plan.members, head_dim).swapaxes(0, 1)
    return out.reshape(-1, block_tokens, heads, head_dim)[:blocks]


class Arrays(NamedTuple):
    """The arrays of a call in the device's memory.

    Attributes:
        q, out: (tile heads, tokens * members, head_dim).
        pool, copies: the pages and the `last_pages`, with all but their last axis joined.
        table, last, sequence, start, stop: integers; see `last_pages` and `run_stops`.
    """

    q: Any
    pool: Any
    copies: Any
    table: Ref
    last: Ref
    sequence: Ref
    start: Ref
    stop: Ref
    out: Any


class Buffers(NamedTuple):
    """The shared memory of a program, with a barrier for each part: full after a copy, free after the products."""

    q: Any
    k: Any
    v: Any
    q_full: Any
    k_full: Any
    v_full: Any
    k_free: Any
    v_free: Any


def _buffers(plan: Plan, head_dim: int, dtype: jnp.dtype) -> Buffers:
    form = (mgpu.TilingTransform((8, 64)), mgpu.SwizzleTransform(128))  # as products read matrices
    tiles = mgpu.SMEM((plan.stages, plan.keys, head_dim), dtype, transforms=form)
    full = mgpu.Barrier(num_arrivals=plan.pages, num_barriers=plan.stages)
    free = mgpu.Barrier(num_arrivals=MULTIPLYING, num_barriers=plan.stages)
    q = mgpu.SMEM((MULTIPLYING, ROWS, head_dim), dtype, transforms=form)
    return Buffers(q, tiles, tiles, mgpu.Barrier(num_barriers=MULTIPLYING), full, full, free, free)


def _attend_tile(*refs: Any, plan: Plan) -> None:
    """Compute one tile of queries; the tiles with the longest contexts start first."""
    arrays, buffers = Arrays(*refs[: len(Arrays._fields)]), Buffers(*refs[len(Arrays._fields) :])
    warpgroup, head = lax.axis_index("warpgroup"), lax.axis_index("head")
    tile = arrays.start.shape[0] // plan.blocks - 1 - lax.axis_index("tile")

    @pl.when(warpgroup < MULTIPLYING)
    def _() -> None:
        mgpu.set_max_registers(REGISTERS[0], action="increase")
        Attention(plan, arrays, buffers, head, tile, warpgroup).run()

    @pl.when(warpgroup == MULTIPLYING)
    def _() -> None:
        mgpu.set_max_registers(REGISTERS[1], action="decrease")
        Copies(plan, arrays, buffers, lax.div(head, plan.member_tiles), tile).run()


@dataclass(frozen=True)
class Copies:
    """The copies of keys and values for one tile of queries, in the order of the products."""

    plan: Plan
    arrays: Arrays
    buffers: Buffers
    head: jax.Array
    tile: jax.Array

    def run(self) -> None:
        """Copy the tiles of all runs, then wait for the last products."""
        done = lax.fori_loop(0, self.plan.blocks, self._copy_run, jnp.int32(0))
        for slot in range(self.plan.stages):
            pl.when(slot < done)(partial(self._wait, slot))

    def _wait(self, slot: int) -> None:
        mgpu.barrier_wait(self.buffers.k_free.at[slot])
        mgpu.barrier_wait(self.buffers.v_free.at[slot])

    def _copy_run(self, block: jax.Array, done: jax.Array) -> jax.Array:
        at = self.tile * self.plan.blocks + block
        tiles, sequence = pl.cdiv(self.arrays.stop[at], self.plan.keys), self.arrays.sequence[at]
        result: jax.Array = lax.fori_loop(0, tiles, partial(self._copy_tile, sequence), done)
        return result

    def _copy_tile(self, sequence: jax.Array, number: jax.Array, done: jax.Array) -> jax.Array:
        slot, buffers = lax.rem(done, self.plan.stages), self.buffers
        keys, values = (buffers.k, buffers.k_full, buffers.k_free), (buffers.v, buffers.v_full, buffers.v_free)
        for side, (buffer, full, free) in ((0, keys), (self.plan.sides - 1, values)):
            pl.when(done >= self.plan.stages)(partial(mgpu.barrier_wait, free.at[slot]))
            for place in range(self.plan.pages):
                part = buffer.at[slot, pl.ds(place * self.plan.page_size, self.plan.page_size)]
                self._copy_page(sequence, number * self.plan.pages + place, side, part, full.at[slot])
        return done + 1

    def _copy_page(self, sequence: jax.Array, index: jax.Array, side: int, part: Any, full: Any) -> None:
        """Copy a page of a sequence: from the pool, or its cleaned copy, or zeros after the last page."""
        last = self.arrays.last[sequence]

        def copy(source: Any, page: jax.Array) -> None:
            row = ((page * self.plan.sides + side) * self.plan.kv_heads + self.head) * self.plan.page_size
            mgpu.copy_gmem_to_smem(source.at[pl.ds(row, self.plan.page_size)], part, full)

        @pl.when(index < last)
        def _() -> None:
            copy(self.arrays.pool, self.arrays.table[sequence, index])

        @pl.when(index >= last)
        def _() -> None:
            copy(self.arrays.copies, jnp.where(index == last, sequence, self.arrays.table.shape[0]))


@dataclass(frozen=True)
class Attention:
    """The products and the softmax of one warpgroup's rows of a tile."""

    plan: Plan
    arrays: Arrays
    buffers: Buffers
    head: jax.Array
    tile: jax.Array
    warpgroup: jax.Array

    @property
    def _do(self) -> Instructions:
        return Instructions(interpret=self.plan.interpret)

    def run(self) -> None:
        """Load the queries, visit all runs, and write the results."""
        head_dim = self.arrays.q.shape[-1]
        rows = pl.ds((self.tile * MULTIPLYING + self.warpgroup) * ROWS, ROWS)
        full = self.buffers.q_full.at[self.warpgroup]
        mgpu.copy_gmem_to_smem(self.arrays.q.at[self.head, rows], self.buffers.q.at[self.warpgroup], full)
        mgpu.barrier_wait(full)
        sums = Sums(self._do.full((ROWS,), MASKED), self._do.full((ROWS,), 0.0), self._do.full((ROWS, head_dim), 0.0))
        _, sums = lax.fori_loop(0, self.plan.blocks, self._visit_run, (jnp.int32(0), sums))
        total = jnp.where(sums.total == 0.0, 1.0, sums.total)
        self.arrays.out[self.head, rows] = sums.weighted / _by_row(total, head_dim)

    def _visit_run(self, block: jax.Array, carry: tuple[jax.Array, Sums]) -> tuple[jax.Array, Sums]:
        """Add the keys and values of one run; add nothing if the block begins no run."""
        at = self.tile * self.plan.blocks + block
        start, stop = self.arrays.start[at], self.arrays.stop[at]
        is_whole = stop - start == self.plan.blocks * self.plan.block_tokens
        clear = jnp.where(is_whole, lax.div(start + 1, self.plan.keys), 0)  # all keys are visible to all queries
        carry = lax.fori_loop(0, clear, partial(self._visit, None), carry)
        run = (block, start, stop)
        result: tuple[jax.Array, Sums] = lax.fori_loop(
            clear, pl.cdiv(stop, self.plan.keys), partial(self._visit, run), carry
        )
        return result

    def _visit(
        self, run: tuple[jax.Array, jax.Array, jax.Array] | None, number: jax.Array, carry: tuple[jax.Array, Sums]
    ) -> tuple[jax.Array, Sums]:
        """Add one tile of keys and values, masked for the queries of a run, (block, start, stop); None for no mask."""
        done, sums = carry
        slot, buffers = lax.rem(done, self.plan.stages), self.buffers
        mgpu.barrier_wait(buffers.k_full.at[slot])
        scores = self._do.product(buffers.q.at[self.warpgroup], buffers.k.at[slot]) * (self.plan.scale * LOG2E)
        mgpu.barrier_arrive(buffers.k_free.at[slot])
        mask = None if run is None else self._mask(*run, number * self.plan.keys, scores.shape)
        if mask is not None:
            scores = jnp.where(mask, scores, MASKED)
        peak = jnp.maximum(sums.peak, scores.max(axis=1))
        weights = jnp.exp2(scores - _by_row(peak, self.plan.keys))
        if mask is not None:
            weights = jnp.where(mask, weights, 0.0)
        shrink = jnp.exp2(sums.peak - peak)
        total = sums.total * shrink + weights.sum(axis=1)
        shrunk = sums.weighted * _by_row(shrink, sums.weighted.shape[1])
        mgpu.barrier_wait(buffers.v_full.at[slot])
        weighted = self._do.add_product(shrunk, weights.astype(buffers.v.dtype), buffers.v.at[slot])
        mgpu.barrier_arrive(buffers.v_free.at[slot])
        if run is not None and self.plan.blocks > 1:  # a weight of 0 would not hide a NaN of another sequence
            weighted = jnp.where(self._is_in(*run, weighted.shape), weighted, sums.weighted)
        return done + 1, Sums(peak, total, weighted)

    def _position(self, block: jax.Array, start: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Return each row's position in the sequence of the run from a block of the tile on."""
        token = self.warpgroup * (ROWS // self.plan.members) - block * self.plan.block_tokens
        return start + token + lax.div(self._do.places((shape[0], shape[1]), 0), self.plan.members)

    def _is_in(self, block: jax.Array, start: jax.Array, stop: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Return True for each row of a run."""
        position = self._position(block, start, shape)
        return (position >= start) & (position < stop)

    def _mask(
        self, block: jax.Array, start: jax.Array, stop: jax.Array, first: jax.Array, shape: tuple[int, ...]
    ) -> jax.Array:
        """Return the visibility of each key, from position `first` on, to the rows of a run."""
        keys = first + self._do.places((shape[0], shape[1]), 1)
        return self._is_in(block, start, stop, shape) & (keys <= self._position(block, start, shape))


def _by_row(numbers: jax.Array, width: int) -> jax.Array:
    """Repeat each row's number over the columns."""
    return lax.broadcast_in_dim(numbers, (ROWS, width), [0])
