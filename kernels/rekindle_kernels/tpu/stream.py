"""Streaming of pages from HBM into VMEM, tile after tile, with several copies in flight.

Both attention kernels read pages this way. The work of one grid step is a chain of runs. A run is a range of positions
of one sequence: a decode row, or the prefill blocks of one sequence in a window. While one tile is computed, the next
tiles are being copied, also across runs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Ref = Any
"""Pallas reference to memory; Pallas has no public type for it."""


class Runs(NamedTuple):
    """The runs of all grid steps, prefetched as scalars. An empty run has `first == last == 0`.

    Attributes:
        first, last: (runs,) a run reads the positions `[first, last)`.
        owner: (runs,) the row of the page table.
        following: (runs,) the next non-empty run, in any step; the number of runs if there is none.
        table: (sequences * pages_per_sequence,) the page table, flat.
    """

    first: jax.Array
    last: jax.Array
    owner: jax.Array
    following: jax.Array
    table: jax.Array

    @classmethod
    def of(cls, first: jax.Array, last: jax.Array, owner: jax.Array, table: jax.Array, multiple: int) -> "Runs":
        """Return runs padded with empty ones to a multiple of `multiple`; an empty run may have any `last <= first`."""
        first, last, owner = (jnp.pad(x, (0, -len(x) % multiple)) for x in (first, last, owner))
        busy = last > first
        places = jnp.where(busy, jnp.arange(len(busy), dtype=jnp.int32), len(busy))
        following = jnp.append(lax.cummin(places, reverse=True)[1:], jnp.int32(len(busy)))
        return cls(jnp.where(busy, first, 0), jnp.where(busy, last, 0), owner, following, table.reshape(-1))


class Stream(NamedTuple):
    """The stream of one grid step, built by a kernel from its references.

    Attributes:
        runs: the runs, scalars in SMEM.
        pages: the pool in HBM.
        buffer: (stages, tile_pages, sides, kv_heads, page_size, width) in VMEM, pages in the form of `form`.
        arrived: (stages,) semaphores.
        pages_per_sequence: the width of the page table.
        stop: the end of the step's range of runs.
    """

    runs: Runs
    pages: Ref
    buffer: Ref
    arrived: Ref
    pages_per_sequence: int
    stop: jax.Array

    @property
    def tile_tokens(self) -> int:
        """The number of positions in a tile."""
        _, tile_pages, _, _, page_size, _ = self.buffer.shape
        return int(tile_pages * page_size)

    def open(self, begin: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Start the first copies of a step with `begin` as its first run, and return the cursor for `load`."""
        run = jnp.where(self.runs.last[begin] > 0, begin, self.runs.following[begin])
        cursor = (run, self._first_tile(run))
        for stage in range(self.buffer.shape[0] - 1):
            cursor = self._start(cursor, stage)
        return cursor

    def tiles(self, run: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the range of tiles of a run."""
        return self._first_tile(run), pl.cdiv(self.runs.last[run], self.tile_tokens)

    def load(
        self, run: jax.Array, tile: jax.Array, count: jax.Array, cursor: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Start the copy of one more tile, wait for the given one, and zero the positions outside its run.

        Args:
            run, tile: the tile to wait for; tiles are loaded in the order of their runs.
            count: the number of tiles loaded before in this step.
            cursor: the run and tile to copy next, from `open` or the last `load`.

        Returns:
            The tile's stage of the buffer, and the cursor.
        """
        stages = self.buffer.shape[0]
        cursor = self._start(cursor, lax.rem(count + stages - 1, stages))
        stage = lax.rem(count, stages)
        self._for_each_page(run, tile, stage, lambda copy: copy.wait())
        self._hide(run, tile, stage)
        return stage, cursor

    def _first_tile(self, run: jax.Array) -> jax.Array:
        return lax.div(self.runs.first[jnp.minimum(run, self.runs.first.shape[0] - 1)], jnp.int32(self.tile_tokens))

    def _start(self, cursor: tuple[jax.Array, jax.Array], stage: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        run, tile = cursor

        @pl.when(run < self.stop)
        def start() -> None:
            self._for_each_page(run, tile, stage, lambda copy: copy.start())

        valid_run = jnp.minimum(run, self.runs.last.shape[0] - 1)
        more = (tile + 1) * self.tile_tokens < self.runs.last[valid_run]
        following = jnp.where(run < self.stop, self.runs.following[valid_run], run)
        return jnp.where(more, run, following), jnp.where(more, tile + 1, self._first_tile(following))

    def _for_each_page(self, run: jax.Array, tile: jax.Array, stage: jax.Array | int, act: Any) -> None:
        """Call `act` with the copy of each page of the tile within the run."""
        _, tile_pages, _, _, page_size, _ = self.buffer.shape
        begin = lax.div(self.runs.first[run], jnp.int32(page_size)) - tile * tile_pages
        end = pl.cdiv(self.runs.last[run], page_size) - tile * tile_pages
        base = self.runs.owner[run] * self.pages_per_sequence + tile * tile_pages

        def one(place: jax.Array, carry: None) -> None:
            page = self.runs.table[base + place]
            act(pltpu.make_async_copy(self.pages.at[page], self.buffer.at[stage, place], self.arrived.at[stage]))

        lax.fori_loop(jnp.maximum(begin, 0), jnp.minimum(end, tile_pages), one, None)

    def _hide(self, run: jax.Array, tile: jax.Array, stage: jax.Array) -> None:
        """Set the values outside the run to zero: a weight of 0 would not hide a NaN there."""
        _, tile_pages, sides, kv_heads, page_size, width = self.buffer.shape
        start = tile * self.tile_tokens
        first, last = self.runs.first[run], self.runs.last[run]

        @pl.when((first > start) | (last < start + self.tile_tokens))
        def hide() -> None:
            shape = (tile_pages, page_size, width)
            place = lax.broadcasted_iota(jnp.int32, shape, 0) * page_size + lax.broadcasted_iota(jnp.int32, shape, 1)
            inside = (start + place >= first) & (start + place < last)

            def one(head: jax.Array, carry: None) -> None:
                values = self.buffer[stage, :, sides - 1, head]
                self.buffer[stage, :, sides - 1, head] = jnp.where(inside, values, jnp.zeros_like(values))

            lax.fori_loop(0, kv_heads, one, None)

    def keys(self, stage: jax.Array, head: jax.Array | int) -> jax.Array:
        """Return the rows with the keys of a loaded tile, (tile_tokens, width)."""
        keys: jax.Array = self.buffer[stage, :, 0, head].reshape(self.tile_tokens, self.buffer.shape[-1])
        return keys

    def values(self, stage: jax.Array, head: jax.Array | int) -> jax.Array:
        """Return the rows with the values of a loaded tile, (tile_tokens, width); zeros outside its run."""
        side = self.buffer.shape[2] - 1
        values: jax.Array = self.buffer[stage, :, side, head].reshape(self.tile_tokens, self.buffer.shape[-1])
        return values
