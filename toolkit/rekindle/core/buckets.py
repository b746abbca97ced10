"""Buckets: padded shapes of a tick. Each bucket has a compiled program; a tick runs in the smallest one that fits."""

from collections.abc import Sequence
from itertools import count, takewhile
from operator import attrgetter
from typing import NamedTuple

QUERY_BLOCK = 16
"""Number of prefill tokens in a query block; a block belongs to one request and one page."""
PIECE = 256
"""Number of embeddings of an image copied at a time, between the device and the disk."""
MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS = 256, 16
"""Room on the device for the token sequences of bad words; single tokens need none."""
MAX_STEPS = QUERY_BLOCK
"""Largest number of decode steps in a tick: at most the smallest page, so that a tick needs at most one page more."""
MAX_END_IDS = 8
"""Room on the device for the end tokens of a request; the host finds any others."""
MAX_PROCESSOR_ARGS = 8
"""Room on the device for a request's arguments to the logits processor."""


class Bucket(NamedTuple):
    """The padded shape of one tick; either part can be 0.

    Attributes:
        prefill_tokens: room for prompt tokens, a multiple of `QUERY_BLOCK`.
        decode_rows: room for decoding requests.
        adapters: whether its program adds the adapters of rows.
        steered: whether its program applies the interventions of rows.
        pictures: whether its program takes the embeddings of images in prompts.
        proposes: whether its program runs the draft head of the model.
        windows: whether its program verifies drafts of a model with states, by a state after each decode row.
        coordinates: whether its program takes the coordinates of prompts with images, and the shifts of decode rows
            behind them.
    """

    prefill_tokens: int
    decode_rows: int
    adapters: bool = False
    steered: bool = False
    pictures: bool = False
    proposes: bool = False
    windows: bool = False
    coordinates: bool = False

    @property
    def size(self) -> int:
        """Number of tokens computed at a time, padding included."""
        return self.prefill_tokens + self.decode_rows

    @property
    def row_tokens(self) -> int:
        """Room for the new tokens of a row: several without prompt tokens, else one."""
        return 1 if self.prefill_tokens else MAX_STEPS

    @property
    def blocks(self) -> int:
        """Number of query blocks in the prefill part."""
        return self.prefill_tokens // QUERY_BLOCK


def default_prefill_buckets(limit: int) -> tuple[int, ...]:
    """Return one query block, for prompts with a cached beginning, and sizes that double from 64 tokens.

    Padding then wastes less than half of a tick; each further bucket would cost a compilation.
    """
    return tuple(dict.fromkeys((QUERY_BLOCK, *_geometric(64, 2, limit))))


def default_decode_buckets(limit: int) -> tuple[int, ...]:
    """Return sizes that grow fourfold from one row.

    A decode step mostly reads the weights, so a few rows cost little more than one.
    """
    return _geometric(1, 4, limit)


def all_buckets(prefill: Sequence[int], decode: Sequence[int], *, combined: bool) -> tuple[Bucket, ...]:
    """Return every bucket that a tick may need; both parts at once only for combined ticks."""
    alone = [Bucket(0, rows) for rows in decode] + [Bucket(tokens, 0) for tokens in prefill]
    both = [Bucket(tokens, rows) for tokens in prefill for rows in decode] if combined else []
    return tuple(alone + both)


def larger(buckets: Sequence[Bucket], minimum: Bucket) -> list[Bucket]:
    """Return the larger buckets with room for all of `minimum`, the least padding first."""
    holding = (
        bucket
        for bucket in buckets
        if bucket.prefill_tokens >= minimum.prefill_tokens
        and bucket.decode_rows >= minimum.decode_rows
        and bucket[2:] == minimum[2:]
    )
    return sorted((bucket for bucket in holding if bucket != minimum), key=attrgetter("size"))


def smallest(sizes: Sequence[int], count: int) -> int:
    """Return the smallest of the ascending `sizes` with room for `count`, or 0 for a count of 0.

    Raises:
        ValueError: no size is large enough.
    """
    if count == 0:
        return 0
    for size in sizes:
        if size >= count:
            return size
    raise ValueError(f"{count} does not fit the largest bucket, {sizes[-1]}")


def _geometric(first: int, factor: int, limit: int) -> tuple[int, ...]:
    sizes = (first * factor**power for power in count())
    return (*takewhile(lambda size: size < limit, sizes), limit)
