"""Padded shapes: a program is compiled for each bucket, and a tick runs in the smallest bucket that holds it."""

from collections.abc import Sequence
from itertools import count, takewhile
from typing import NamedTuple

QUERY_BLOCK = 16
"""The number of prefill tokens in a query block, which belongs to one request and one page."""
MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS = 256, 16
"""Room on the device for the token sequences of bad words; words of one token need none."""
MAX_PROCESSOR_ARGS = 8
"""Room on the device for the numbers that a request gives to the session's logits processor."""


class Bucket(NamedTuple):
    """The padded shape of one tick; either part can be 0.

    Attributes:
        prefill_tokens: room for prompt tokens, a multiple of `QUERY_BLOCK`.
        decode_rows: room for requests that decode.
    """

    prefill_tokens: int
    decode_rows: int

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


def all_buckets(prefill: Sequence[int], decode: Sequence[int], *, combined: bool) -> tuple[Bucket, ...]:
    """Return every bucket that a tick may need: with both parts only where ticks are combined."""
    alone = [Bucket(0, rows) for rows in decode] + [Bucket(tokens, 0) for tokens in prefill]
    both = [Bucket(tokens, rows) for tokens in prefill for rows in decode] if combined else []
    return tuple(alone + both)


def larger(buckets: Sequence[Bucket], needed: Bucket) -> list[Bucket]:
    """Return the larger buckets that hold what `needed` holds, the one with the least padding first."""
    tokens, rows = needed
    holding = (bucket for bucket in buckets if bucket.prefill_tokens >= tokens and bucket.decode_rows >= rows)
    return sorted((bucket for bucket in holding if bucket != needed), key=sum)


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
