"""Masks of several constrained requests, computed together in threads of llguidance's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from rekindle.core.errors import RekindleError
from rekindle.core.request.allowed import Allowed

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

Bits = np.ndarray[Any, np.dtype[np.int32]]
"""Of a mask: one bit a token, the first in the lowest bit."""
Steps = Generator["LLMatcher", Bits, Allowed]
"""Steps of one request: each asks for the mask of a place, and the last returns what may follow."""

Masked = Allowed | RekindleError
"""What may follow in a request, or the error for which nothing may."""


class Masks(Protocol):
    """Computes the masks of places.

    Attributes:
        at_once: of so many, which is when the caller looks at the clock again.
    """

    @property
    def at_once(self) -> int: ...

    def fill(self, places: Sequence[LLMatcher]) -> Sequence[Bits]:
        """Compute the masks of places."""


class OneByOne:
    """Computes masks in the thread that asks."""

    at_once: Final = 1

    def fill(self, places: Sequence[LLMatcher]) -> Sequence[Bits]:
        """Compute the masks of places."""
        return [np.frombuffer(place.compute_bitmask(), np.int32) for place in places]


class InThreads:
    """Computes masks in threads of llguidance's own, which are started when two are asked for at once.

    Threads of Python are slower here than one, as they wait for each other's lock.

    Args:
        vocab_size: the bound that token ids are below.
    """

    def __init__(self, vocab_size: int):
        self._words = -(-vocab_size // 32)
        self._threads = min(8, os.cpu_count() or 1)

    @property
    def at_once(self) -> int:
        """One for each thread, since a mask can take a hundredth of a tick."""
        return self._threads

    def fill(self, places: Sequence[LLMatcher]) -> Sequence[Bits]:
        """Compute the masks of places."""
        if len(places) < 2:
            return OneByOne().fill(places)
        from llguidance.numpy import fill_next_token_bitmask_par

        bits = np.empty((len(places), self._words), np.int32)
        fill_next_token_bitmask_par(self._executor, [(place, row) for row, place in enumerate(places)], bits)
        return list(bits)

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor(self._threads)


class Together:
    """Steps of several requests, run in turns so that their masks are computed together."""

    def __init__(self, masks: Masks):
        self._masks = masks
        self._asking: dict[int, tuple[Steps, LLMatcher]] = {}
        self._outcomes: dict[int, Masked] = {}

    def begin(self, request_id: int, steps: Steps) -> None:
        """Run the steps of a request up to where they ask for a mask."""
        self._go_on(request_id, steps, None)

    def forget(self, request_id: int) -> None:
        """Run no more steps of a request, if any are left."""
        self._asking.pop(request_id, None)
        self._outcomes.pop(request_id, None)

    def go_on(self, requests: Sequence[int], enough: Callable[[], bool]) -> tuple[list[tuple[int, Masked]], list[int]]:
        """Run steps of these requests until none of them asks for a mask, or some are done and it is enough.

        Returns:
            the outcomes of those that are done, and the ids of those that are not.
        """
        while some := list(islice(filter(self._asking.__contains__, requests), self._masks.at_once)):
            filled = self._masks.fill([self._asking[each][1] for each in some])
            for each, bits in zip(some, filled, strict=True):
                steps, _ = self._asking.pop(each)
                self._go_on(each, steps, bits)
            if enough():
                break
        done = [(each, self._outcomes.pop(each)) for each in requests if each in self._outcomes]
        return done, [each for each in requests if each in self._asking]

    def _go_on(self, request_id: int, steps: Steps, bits: Bits | None) -> None:
        try:
            self._asking[request_id] = steps, next(steps) if bits is None else steps.send(bits)
        except StopIteration as stop:
            self._outcomes[request_id] = stop.value
        except RekindleError as error:
            self._outcomes[request_id] = error


def alone(steps: Steps) -> Allowed:
    """Run the steps of one request in this thread.

    Raises:
        RekindleError: as the steps do.
    """
    together = Together(OneByOne())
    together.begin(0, steps)
    ((_, outcome),), _ = together.go_on([0], lambda: False)
    if isinstance(outcome, RekindleError):
        raise outcome
    return outcome
