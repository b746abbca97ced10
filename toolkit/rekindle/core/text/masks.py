"""Token masks of several constrained requests, computed together in llguidance's threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from rekindle.core.errors import RekindleError
from rekindle.core.request.constraint import Allowed

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

Bits = np.ndarray[Any, np.dtype[np.int32]]
"""Masks: a bit for each token, lowest bit first."""
Need: TypeAlias = "tuple[LLMatcher, tuple[int, ...]]"
"""Order for masks: of a matcher now, and after each token of a draft."""
Steps: TypeAlias = Generator[Need, Bits, Allowed]
"""Generator of one request: it yields the masks that it needs, gets them as (masks, words), and returns the allowed
tokens."""

Outcome = Allowed | RekindleError
"""The allowed tokens of a request, or its error."""


class Masks(Protocol):
    """Computation of token masks.

    Attributes:
        batch_size: number of masks to compute between two checks of the caller's deadline.
    """

    @property
    def batch_size(self) -> int: ...

    def fill(self, needs: Sequence[Need]) -> Sequence[Bits]:
        """Compute the masks of several requests, (1 + draft tokens, words) each."""


class SerialMasks:
    """Serial computation in the calling thread."""

    batch_size: Final = 1

    def fill(self, needs: Sequence[Need]) -> Sequence[Bits]:
        """Compute the masks of several requests, (1 + draft tokens, words) each."""
        return [np.stack(list(self._masks(matcher, draft))) for matcher, draft in needs]

    def _masks(self, matcher: LLMatcher, draft: Sequence[int]) -> Iterator[Bits]:
        yield np.frombuffer(matcher.compute_bitmask(), np.int32)
        for token in draft:
            matcher.consume_tokens([token])
            yield np.frombuffer(matcher.compute_bitmask(), np.int32)
        matcher.rollback(len(draft))


class ThreadedMasks:
    """Parallel computation in llguidance's threads, started at the first batch of two or more masks.

    Python threads would be slower than a single thread here, because they contend for the GIL.

    Args:
        vocab_size: upper bound of the token ids.
        cores: the number of cores for the threads.
    """

    def __init__(self, vocab_size: int, cores: int):
        self._words = -(-vocab_size // 32)
        self._threads = min(8, cores)

    @property
    def batch_size(self) -> int:
        """One mask for each thread. A mask can take a hundredth of a tick."""
        return self._threads

    def fill(self, needs: Sequence[Need]) -> Sequence[Bits]:
        """Compute the masks of several requests, (1 + draft tokens, words) each."""
        counts = [1 + len(draft) for _, draft in needs]
        *firsts, total = accumulate(counts, initial=0)
        if total < 2:
            return SerialMasks().fill(needs)
        from llguidance.numpy import fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens

        bits = np.empty((total, self._words), np.int32)
        orders = [(matcher, first, list(draft)) for first, (matcher, draft) in zip(firsts, needs, strict=True)]
        if drafted := [order for order in orders if order[2]]:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, drafted, bits)
        if plain := [(matcher, first) for matcher, first, draft in orders if not draft]:
            fill_next_token_bitmask_par(self._executor, plain, bits)
        return [bits[first : first + count] for first, count in zip(firsts, counts, strict=True)]

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor(self._threads)


class MaskBatcher:
    """Runner of the steps of several requests. It computes their masks in batches."""

    def __init__(self, masks: Masks):
        self._masks = masks
        self._pending: dict[int, tuple[Steps, Need]] = {}
        self._outcomes: dict[int, Outcome] = {}

    def begin(self, request_id: int, steps: Steps) -> None:
        """Start the steps of a request, up to its first mask."""
        self._advance(request_id, steps, None)

    def forget(self, request_id: int) -> None:
        """Discard the remaining steps and the outcome of a request, if there are any."""
        self._pending.pop(request_id, None)
        self._outcomes.pop(request_id, None)

    def advance(
        self, requests: Sequence[int], should_stop: Callable[[], bool]
    ) -> tuple[list[tuple[int, Outcome]], list[int]]:
        """Run the steps of some requests until all are done, or until `should_stop` returns True after a batch.

        Returns:
            The outcomes of the completed requests by id, and the ids of the unfinished requests.
        """
        while batch := list(islice(filter(self._pending.__contains__, requests), self._masks.batch_size)):
            masks = self._masks.fill([self._pending[request_id][1] for request_id in batch])
            for request_id, bits in zip(batch, masks, strict=True):
                steps, _ = self._pending.pop(request_id)
                self._advance(request_id, steps, bits)
            if should_stop():
                break
        done = [(request_id, self._outcomes.pop(request_id)) for request_id in requests if request_id in self._outcomes]
        return done, [request_id for request_id in requests if request_id in self._pending]

    def _advance(self, request_id: int, steps: Steps, bits: Bits | None) -> None:
        try:
            self._pending[request_id] = steps, next(steps) if bits is None else steps.send(bits)
        except StopIteration as stop:
            self._outcomes[request_id] = stop.value
        except RekindleError as error:
            self._outcomes[request_id] = error


def run_steps(steps: Steps) -> Allowed:
    """Run the steps of one request in this thread.

    Raises:
        RekindleError: an error of the steps.
    """
    batcher = MaskBatcher(SerialMasks())
    batcher.begin(0, steps)
    ((_, outcome),), _ = batcher.advance([0], lambda: False)
    if isinstance(outcome, RekindleError):
        raise outcome
    return outcome
