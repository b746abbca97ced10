"""Input arrays of a tick, and their layout in the one packed array sent by the host."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate
from typing import Final, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.core.buckets import Bucket
from rekindle.core.device.sampling.rows import COLUMNS
from rekindle.core.device.state import Slots

A = TypeVar("A", np.ndarray, jax.Array)
NO_ADAPTER: Final = 2**30
"""Number in place of an adapter's slot, above all slots."""


@dataclass(frozen=True, slots=True)
class TickInputs(Generic[A]):
    """One plan as arrays: prefill blocks, completed prompts, and decode rows.

    Attributes:
        tokens: (prefill_tokens,) prompt tokens in blocks of `QUERY_BLOCK`.
        targets: (prefill_tokens,) the next token of each scored position, else -1.
        block_slot, block_start, block_page: (blocks,) each block's slot, first position, and page.
        block_count: (blocks,) the number of tokens in each block; 0 for padding.
        block_length: (blocks,) the length of each block's request, for long-context rope; see `Chunk`.
        sample_index: (samples,) index into `tokens` of each completed prompt's last token.
        sample_slot, sample_length: (samples,) each completed prompt's slot and number of tokens.
        sample_params: (samples, COLUMNS) each completed prompt's packed `SamplingRows`.
        chunk_slot: (samples,) the slots of all chunks.
        chunk_table: (samples, pages_per_request) their page tables.
        sum_first, sum_count: (samples,) the range of each chunk's tokens for a sum of hidden states: the first index
            into `tokens`, and their number.
        row_slot: (decode_rows,) the decoding slots.
        row_pages: (decode_rows, 2) the page of each slot's token, and the next one if a later token of the tick needs
            it, else the null page.
        row_length: (decode_rows,) like `block_length`.
        row_offset, row_draft: (decode_rows,) the place of each row after its slot's newest token, and its drafted
            token; both are 0 for the row of the newest token. The rows of a slot are adjacent and in order.
        row_steps: (decode_rows,) the most new tokens of each row; 0 for padding.
        block_adapter, sample_adapter, row_adapter: (blocks,), (samples,) and (decode_rows,) the ascending slots of
            their adapters; `NO_ADAPTER` for none. All are empty in a program without adapters.
        embedded: (prefill_tokens,) the row of the embedding of each token of an image, else -1; empty in a program
            without images.
        following: (prefill_tokens,) the known token after each token, else 0; empty in a program without draft head.
        coordinates: (3, prefill_tokens) the time, row and column of each token; empty in a program without images, or
            of a model with positions by index.
        row_shift: (decode_rows,) the position of each decode row's token minus its index; empty for a model with
            positions by index.
    """

    tokens: A
    targets: A
    block_slot: A
    block_start: A
    block_page: A
    block_count: A
    block_length: A
    sample_index: A
    sample_slot: A
    sample_length: A
    sample_params: A
    chunk_slot: A
    chunk_table: A
    sum_first: A
    sum_count: A
    row_slot: A
    row_pages: A
    row_length: A
    row_offset: A
    row_draft: A
    row_steps: A
    block_adapter: A
    sample_adapter: A
    row_adapter: A
    embedded: A
    following: A
    coordinates: A
    row_shift: A

    def row_positions(self, slots: Slots) -> jax.Array:
        """Return the position of each decode row's token, (decode_rows,) int32."""
        return slots.length[self.row_slot] + self.row_offset

    def places(self, positions: jax.Array) -> jax.Array:
        """Return the places of all tokens in their requests, for ropes: (token,) or (3, token) int32.

        Args:
            positions: (token,) int32, the index of each token in its request, those of prompts first.
        """
        prefill = len(self.tokens)
        if not self.coordinates.size:
            return jnp.concatenate([positions[:prefill], positions[prefill:] + self.row_shift])
        of_rows = jnp.broadcast_to(positions[prefill:] + self.row_shift, (3, len(self.row_shift)))
        return jnp.concatenate([self.coordinates, of_rows], axis=1)

    def row_tokens(self, slots: Slots) -> jax.Array:
        """Return the token of each decode row, the newest of its slot or a drafted one, (decode_rows,) int32."""
        return jnp.where(self.row_offset > 0, self.row_draft, slots.token[self.row_slot])

    def row_masks(self, null_slot: int) -> jax.Array:
        """Return the place of each decode row's mask in `Slots.allowed`, (decode_rows,) int32."""
        after_drafts = null_slot + 1 + jnp.arange(len(self.row_slot), dtype=jnp.int32)
        return jnp.where(self.row_offset > 0, after_drafts, self.row_slot)


def samples_of(bucket: Bucket, max_running: int) -> int:
    """Return the maximum number of prompt chunks in one tick. It bounds the completed prompts, too."""
    return min(bucket.blocks, max_running)


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Layout of the fields of `TickInputs` in the packed array of one bucket."""

    bucket: Bucket
    max_running: int
    pages_per_request: int

    @classmethod
    def of(cls, bucket: Bucket, slots: Slots) -> "InputLayout":
        """Return the layout for these slots, either arrays or shapes."""
        rows, pages_per_request = slots.page_table.shape
        return cls(bucket, rows - 1, pages_per_request)

    @lru_cache(maxsize=256)  # noqa: B019  # a layout is a few numbers, and the host uses its shapes in every tick
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each field, in order."""
        bucket, samples = self.bucket, samples_of(self.bucket, self.max_running)
        by_token = dict.fromkeys(("tokens", "targets"), (bucket.prefill_tokens,))
        by_block = dict.fromkeys(
            ("block_slot", "block_start", "block_page", "block_count", "block_length"), (bucket.blocks,)
        )
        row_names = ("row_slot", "row_length", "row_offset", "row_draft", "row_steps")
        by_row = dict.fromkeys(row_names, (bucket.decode_rows,))
        wide = {"sample_params": (samples, COLUMNS), "chunk_table": (samples, self.pages_per_request)}
        wide |= {"row_pages": (bucket.decode_rows, 2)}
        names, counts = ("block_adapter", "sample_adapter", "row_adapter"), (bucket.blocks, samples, bucket.decode_rows)
        adapted = {name: (count * bucket.adapters,) for name, count in zip(names, counts, strict=True)}
        pictured = {"embedded": (bucket.prefill_tokens * bucket.pictures,)}
        proposing = {"following": (bucket.prefill_tokens * bucket.proposes,)}
        prefill = bucket.prefill_tokens * bucket.pictures * bucket.coordinates
        shifted = {"coordinates": (3, prefill), "row_shift": (bucket.decode_rows * bucket.coordinates,)}
        shapes = by_token | by_block | by_row | wide | adapted | pictured | proposing | shifted
        return {field.name: shapes.get(field.name, (samples,)) for field in fields(TickInputs)}

    def unpack(self, packed: A) -> TickInputs[A]:
        """Return the fields of a packed int32 array: views of it in numpy on the host, slices in jax in the step."""
        return TickInputs(
            **{
                name: packed[part] if shape is None else packed[part].reshape(shape)
                for name, part, shape in self._places()
            }
        )

    @lru_cache(maxsize=256)  # noqa: B019  # as in `shapes`
    def _places(self) -> Sequence[tuple[str, slice, tuple[int, ...] | None]]:
        """Return the name of each field, its part of the packed array, and its shape; None for a vector."""
        ends = accumulate(map(math.prod, self.shapes().values()))
        return [
            (name, slice(end - math.prod(shape), end), shape if len(shape) > 1 else None)
            for (name, shape), end in zip(self.shapes().items(), ends, strict=True)
        ]

    def padding(self) -> np.ndarray:
        """Return a new packed array of padding rows only: null slot, null page."""
        return self._padding().copy()

    @lru_cache(maxsize=256)  # noqa: B019  # as in `shapes`
    def _padding(self) -> np.ndarray:
        packed = np.zeros(sum(map(math.prod, self.shapes().values())), np.int32)
        views = self.unpack(packed)
        for slot in (views.block_slot, views.sample_slot, views.chunk_slot, views.row_slot):
            slot[:] = self.max_running
        views.targets[:] = views.embedded[:] = -1
        views.block_adapter[:] = views.sample_adapter[:] = views.row_adapter[:] = NO_ADAPTER
        return packed
