"""Padded shapes: a program is compiled for each bucket, and a tick runs in the smallest bucket that holds it."""

from collections.abc import Sequence
from itertools import count, takewhile
from operator import attrgetter
from typing import NamedTuple

QUERY_BLOCK = 16
"""The number of prefill tokens in a query block, which belongs to one request and one page."""
MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS = 256, 16
"""Room on the device for the token sequences of bad words; words of one token need none."""
MAX_STEPS = QUERY_BLOCK
"""The most decode steps of one tick: no page is smaller, so that they need at most one page more."""
MAX_END_IDS = 8
"""Room for the end tokens of a row that decodes several steps; others are found on the host."""
MAX_PROCESSOR_ARGS = 8
"""Room on the device for the numbers that a request gives to the session's logits processor."""


class Bucket(NamedTuple):
    """The padded shape of one tick; either part can be 0.

    Attributes:
        prefill_tokens: room for prompt tokens, a multiple of `QUERY_BLOCK`.
        decode_rows: room for requests that decode.
        steps: how many tokens each of these gets at most; more than 1 only without prompt tokens.
    """

    prefill_tokens: int
    decode_rows: int
    steps: int = 1

    @property
    def size(self) -> int:
        """The tokens that it has room for at a time."""
        return self.prefill_tokens + self.decode_rows

    @property
    def blocks(self) -> int:
        """The number of query blocks in the prefill part."""
        return self.prefill_tokens // QUERY_BLOCK


def default_prefill_buckets(limit: int) -> tuple[int, ...]:
    """Return one query block, for prompts whose start is cached, and then sizes that double from 64 tokens.

    Padding then wastes less than half of a tick, and each bucket more would cost a compilation.
    """
    return tuple(dict.fromkeys((QUERY_BLOCK, *_geometric(64, 2, limit))))


def default_decode_buckets(limit: int) -> tuple[int, ...]:
    """Return sizes that grow fourfold from one row.

    A decode step mostly reads the weights, so a few rows cost little more than one.
    """
    return _geometric(1, 4, limit)


def all_buckets(prefill: Sequence[int], decode: Sequence[int], *, combined: bool, steps: int = 1) -> tuple[Bucket, ...]:
    """Return every bucket that a tick may need: with both parts only where ticks are combined.

    Args:
        steps: how many tokens a row gets in one tick where nothing else is to be done.
    """
    alone = [Bucket(0, rows, each) for rows in decode for each in sorted({1, steps})]
    alone += [Bucket(tokens, 0) for tokens in prefill]
    both = [Bucket(tokens, rows) for tokens in prefill for rows in decode] if combined else []
    return tuple(alone + both)


def larger(buckets: Sequence[Bucket], needed: Bucket) -> list[Bucket]:
    """Return the larger buckets that hold what `needed` holds, the one with the least padding first."""
    holding = (
        bucket
        for bucket in buckets
        if bucket.prefill_tokens >= needed.prefill_tokens
        and bucket.decode_rows >= needed.decode_rows
        and bucket.steps == needed.steps
    )
    return sorted((bucket for bucket in holding if bucket != needed), key=attrgetter("size"))


def smallest(sizes: Sequence[int], needed: int) -> int:
    """Return the smallest of the ascending `sizes` that holds `needed`, or 0 if nothing is needed.

    Raises:
        ValueError: no size holds it.
    """
    if needed == 0:
        return 0
    for size in sizes:
        if size >= needed:
            return size
    raise ValueError(f"{needed} does not fit the largest bucket, {sizes[-1]}")


def _geometric(first: int, factor: int, limit: int) -> tuple[int, ...]:
    sizes = (first * factor**power for power in count())
    return (*takewhile(lambda size: size < limit, sizes), limit)
