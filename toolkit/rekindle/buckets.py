"""Padded shapes: a program is compiled for each bucket, and a tick runs in the smallest that holds it."""

from collections.abc import Sequence
from typing import NamedTuple

QUERY_BLOCK = 16
"""Prefill tokens are laid out in blocks of this many, so that a block belongs to one request and one page."""
MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS = 256, 16
"""Room for the token sequences of bad words on the device. Words of one token need none of it."""


class Bucket(NamedTuple):
    """The padded shape of one tick; either part may be 0.

    Attributes:
        prefill_tokens: room for prompt tokens, a multiple of `QUERY_BLOCK`.
        decode_rows: room for requests that decode.
    """

    prefill_tokens: int
    decode_rows: int

    @property
    def blocks(self) -> int:
        """Query blocks in the prefill part."""
        return self.prefill_tokens // QUERY_BLOCK


def default_prefill_buckets(limit: int) -> tuple[int, ...]:
    """One block, for prompts that are cached but for their end; then doubling from 64 tokens, as padding wastes less
    than half, and each bucket costs a compilation.
    """
    return tuple(dict.fromkeys((QUERY_BLOCK, *_geometric(64, 2, limit))))


def default_decode_buckets(limit: int) -> tuple[int, ...]:
    """Fourfold from one row: a decode step's cost is mostly its weights, so few rows cost little more than one."""
    return _geometric(1, 4, limit)


def all_buckets(prefill: Sequence[int], decode: Sequence[int], *, combined: bool) -> tuple[Bucket, ...]:
    """Every bucket that a tick may need: products of the two lists only where one tick may hold both parts."""
    alone = [Bucket(0, rows) for rows in decode] + [Bucket(tokens, 0) for tokens in prefill]
    both = [Bucket(tokens, rows) for tokens in prefill for rows in decode] if combined else []
    return tuple(alone + both)


def larger(buckets: Sequence[Bucket], needed: Bucket) -> list[Bucket]:
    """Those that hold what `needed` holds and more, the least padding first."""
    return sorted(
        (
            b
            for b in buckets
            if b != needed and b.prefill_tokens >= needed.prefill_tokens and b.decode_rows >= needed.decode_rows
        ),
        key=sum,
    )


def smallest(sizes: Sequence[int], needed: int) -> int:
    """The smallest of the ascending `sizes` that holds `needed`; 0 needs none.

    Raises:
        ValueError: none of them does.
    """
    if needed == 0:
        return 0
    for size in sizes:
        if size >= needed:
            return size
    raise ValueError(f"{needed} does not fit the largest bucket, {sizes[-1]}")


def _geometric(first: int, factor: int, limit: int) -> tuple[int, ...]:
    sizes = []
    while first < limit:
        sizes.append(first)
        first *= factor
    return (*sizes, limit)
