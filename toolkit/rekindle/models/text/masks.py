"""Masks of several constrained requests, computed together in threads of llguidance's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rekindle.errors import RekindleError
from rekindle.request.allowed import Allowed

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

MOST_THREADS: Final = 8

Bits = np.ndarray[Any, np.dtype[np.int32]]
"""Of a mask: one bit a token, the first in the lowest bit."""
Steps = Generator["LLMatcher", Bits, Allowed]
"""Steps of one request: each asks for the mask of a place, and the last returns what may follow."""
Fill = Callable[[Sequence["LLMatcher"]], Sequence[Bits]]
"""Computes the masks of places."""


def one_by_one(places: Sequence[LLMatcher]) -> Sequence[Bits]:
    """Compute the masks of places in this thread."""
    return [np.frombuffer(place.compute_bitmask(), np.int32) for place in places]


class Threads:
    """Computes masks in threads of llguidance's own, which are started when two are asked for at once.

    Args:
        vocab_size: the bound that token ids are below.
    """

    def __init__(self, vocab_size: int):
        self._words = -(-vocab_size // 32)

    def fill(self, places: Sequence[LLMatcher]) -> Sequence[Bits]:
        """Compute the masks of places."""
        if len(places) < 2:
            return one_by_one(places)
        from llguidance.numpy import fill_next_token_bitmask_par

        bits = np.empty((len(places), self._words), np.int32)
        fill_next_token_bitmask_par(self._executor, [(place, row) for row, place in enumerate(places)], bits)
        return list(bits)

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor(min(MOST_THREADS, os.cpu_count() or 1))


def together(steps: Sequence[Steps], fill: Fill) -> list[Allowed | RekindleError]:
    """Run the steps of several requests in turns, so that their masks are computed together.

    Returns:
        of each what may follow, or the error that it raised.
    """
    outcomes: list[Allowed | RekindleError] = [Allowed()] * len(steps)
    asked: list[tuple[int, LLMatcher]] = []

    def go_on(index: int, bits: Bits | None) -> None:
        try:
            asked.append((index, next(steps[index]) if bits is None else steps[index].send(bits)))
        except StopIteration as stop:
            outcomes[index] = stop.value
        except RekindleError as error:
            outcomes[index] = error

    for index in range(len(steps)):
        go_on(index, None)
    while asked:
        filled, asked = list(zip(asked, fill([place for _, place in asked]), strict=True)), []
        for (index, _), bits in filled:
            go_on(index, bits)
    return outcomes


def alone(steps: Steps) -> Allowed:
    """Run the steps of one request in this thread.

    Raises:
        RekindleError: as the steps do.
    """
    (outcome,) = together([steps], one_by_one)
    if isinstance(outcome, RekindleError):
        raise outcome
    return outcome
