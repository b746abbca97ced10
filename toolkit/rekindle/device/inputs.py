"""One plan as the arrays that a tick takes, and where each of them is in the one array that the host sends."""

import math
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import jax
import numpy as np

from rekindle.buckets import Bucket
from rekindle.device.sampling_rows import COLUMNS
from rekindle.device.state import Slots

A = TypeVar("A", np.ndarray, jax.Array)


@dataclass(frozen=True, slots=True)
class TickInputs(Generic[A]):
    """One plan as arrays: prefill blocks, the chunks among them that complete a prompt, and decode rows.

    Attributes:
        tokens: (prefill_tokens,) prompt tokens in blocks of `QUERY_BLOCK`.
        targets: (prefill_tokens,) the next token of each if it is to be scored, else -1.
        block_slot, block_start, block_page: (blocks,) whose block it is, its first position, the page it goes to.
        sample_index: (samples,) index into `tokens` of each completed prompt's last token.
        sample_slot, sample_length: (samples,) its slot, and how many tokens the prompt has.
        sample_params: (samples, COLUMNS) its packed `SamplingRows`.
        chunk_slot: (samples,) the slots of all chunks.
        chunk_table: (samples, pages_per_request) their page tables.
        row_slot, row_page: (decode_rows,) the slots that decode, and the page that each one's token goes to.
    """

    tokens: A
    targets: A
    block_slot: A
    block_start: A
    block_page: A
    sample_index: A
    sample_slot: A
    sample_length: A
    sample_params: A
    chunk_slot: A
    chunk_table: A
    row_slot: A
    row_page: A


def samples_of(bucket: Bucket, max_running: int) -> int:
    """How many prompts can have a chunk in one tick, and so be completed in it."""
    return min(bucket.blocks, max_running)


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Where the fields of `TickInputs` are in the packed array of one bucket."""

    bucket: Bucket
    max_running: int
    pages_per_request: int

    @classmethod
    def of(cls, bucket: Bucket, slots: Slots) -> "InputLayout":
        """For these slots, arrays or shapes."""
        rows, pages_per_request = slots.page_table.shape
        return cls(bucket, rows - 1, pages_per_request)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each field, in order."""
        bucket, samples = self.bucket, samples_of(self.bucket, self.max_running)
        by_token = dict.fromkeys(("tokens", "targets"), (bucket.prefill_tokens,))
        by_block = dict.fromkeys(("block_slot", "block_start", "block_page"), (bucket.blocks,))
        by_row = dict.fromkeys(("row_slot", "row_page"), (bucket.decode_rows,))
        wide = {"sample_params": (samples, COLUMNS), "chunk_table": (samples, self.pages_per_request)}
        known = by_token | by_block | by_row | wide
        return {field.name: known.get(field.name, (samples,)) for field in fields(TickInputs)}

    def unpack(self, packed: A) -> TickInputs[A]:
        """Views of the fields inside one packed int32 array, of numpy on the host and of jax inside the program."""
        views, at = {}, 0
        for name, shape in self.shapes().items():
            size = math.prod(shape)
            views[name] = packed[at : at + size].reshape(shape)
            at += size
        return TickInputs(**views)

    def padding(self) -> np.ndarray:
        """A packed array in which every row is padding: it belongs to the null slot and the null page."""
        packed = np.zeros(sum(map(math.prod, self.shapes().values())), np.int32)
        views = self.unpack(packed)
        for slot in (views.block_slot, views.sample_slot, views.chunk_slot, views.row_slot):
            slot[:] = self.max_running
        views.targets[:] = -1
        return packed
