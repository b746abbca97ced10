"""Policies: orders of the waiting requests; the first request leaves the queue next. Five policies have names."""

import hashlib
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rekindle.core.concurrency.warning import trace_of, warn_again
from rekindle.core.request.request import Request

T = TypeVar("T")
PATIENCE_TICKS = 1024
"""Ticks after which a waiting request goes before all others, whatever its priority and the policy: 15 seconds for a
small model, a minute for a large one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request in the view of a policy.

    The scheduler calls a policy when a slot is free, so not in every tick. The policy orders requests of one priority
    among the first 64 of the queue: preempted requests, then the others in order of arrival. The first request in its
    order is admitted if there are enough pages for it. If not, it blocks the requests behind it, even a smaller request
    with enough pages; otherwise small requests could keep a large one waiting forever. For the same reason, a request
    that has waited for 1,024 ticks goes before all others and is not shown to the policy.

    Attributes:
        request: the request, with its prompt, sampling parameters and id.
        started: True if the request ran before and was preempted.
        waited: ticks planned since the arrival of the request, or since its preemption.
        page_size: tokens per page.
        path: function that looks up the cached pages at the beginning of the request, in any tier, root first.
    """

    request: Request
    started: bool
    waited: int
    page_size: int
    path: Callable[[], Sequence[Hashable]]

    @property
    def cached_tokens(self) -> int:
        """Number of tokens of the request cached now, in any tier; looked up at each access."""
        return len(self.path()) * self.page_size


Order = Callable[[Candidate], Any]
"""Sort key of a candidate, as for `sorted`: the lowest key is first, and equal keys keep the order of arrival."""
Policy = Literal["fcfs", "longest-prefix", "dfs-weight", "longest-output", "random"] | Order
Ticks = Literal["alternate", "prefill-first", "combined"]
"""Schedule by which prompts and decode rows share the device."""
DraftSource = Literal["lookup", "mtp"]
"""Source of guesses of the next tokens."""


def longest_prefix(candidate: Candidate) -> tuple[bool, int]:
    """Order preempted requests first, then the others by their number of cached tokens, descending."""
    return not candidate.started, -candidate.cached_tokens


def longest_output(candidate: Candidate) -> tuple[bool, int]:
    """Order preempted requests first, then the others by the number of tokens still to generate, descending."""
    return not candidate.started, len(candidate.request.prompt) - candidate.request.longest


def shuffled(candidate: Candidate) -> bytes:
    """Order by a hash of the request's id, the same in each run."""
    return hashlib.blake2b(str(candidate.request.id).encode(), digest_size=8).digest()


def dfs_weight(candidates: Sequence[Candidate]) -> Order:
    """Return the order of a depth-first walk through the cached prefixes, into the prefix of most requests first.

    Requests with a common prefix therefore start one after the other, while the prefix is cached, as in SGLang's policy
    of this name.
    """
    paths = {candidate.request.id: candidate.path() for candidate in candidates}
    weights = Counter(page for path in paths.values() for page in path)
    ranks = {page: rank for rank, page in enumerate(weights)}  # equal weights in the order of arrival

    def order(candidate: Candidate) -> tuple[bool, list[tuple[int, int]]]:
        below = [(-weights[page], ranks[page]) for page in paths[candidate.request.id]]
        return not candidate.started, [*below, (0, 0)]  # after requests with a longer cached prefix

    return order


POLICIES: Mapping[str, Callable[[Sequence[Candidate]], Order] | None] = {
    "fcfs": None,
    "longest-prefix": lambda candidates: longest_prefix,
    "dfs-weight": dfs_weight,
    "longest-output": lambda candidates: longest_output,
    "random": lambda candidates: shuffled,
}
"""Factory of the order for some candidates, by the name of the policy; None keeps the order of arrival."""


class Ordering:
    """A policy in use by a scheduler. After its first failure, requests keep the order of arrival.

    Args:
        policy: the name of a policy, or a function.
    """

    def __init__(self, policy: str | Order):
        self._policy = policy
        self._failed = False

    def sort(self, waiting: Iterable[T], candidate: Callable[[T], Candidate]) -> list[T]:
        """Return waiting requests in the order of the policy. If the policy fails, warn and keep the order of arrival.

        Args:
            waiting: the requests in order of arrival.
            candidate: function from a request to its view for the policy.
        """
        arrived, policy = list(waiting), self._policy
        make = POLICIES[policy] if isinstance(policy, str) else lambda candidates: policy
        if make is None or self._failed:
            return arrived
        candidates = [candidate(each) for each in arrived]
        order: Any = policy
        try:
            order = make(candidates)
            keys = list(map(order, candidates))
            return [arrived[place] for place in sorted(range(len(arrived)), key=keys.__getitem__)]
        except BaseException as error:  # even SystemExit would end the engine for all
            self._failed = True
            code = getattr(order, "__code__", self.sort.__code__)
            warn_again(_failure(order, error), code.co_filename, code.co_firstlineno)
            return arrived


def _failure(order: Order, error: BaseException) -> str:
    """Format the warning for a failing policy, with its traceback and without Rekindle's own frames."""
    name = getattr(order, "__qualname__", repr(order))
    frames = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    what = "its keys cannot be compared" if frames == {__file__} else "it raised an error"
    return (
        f"the policy {name!s:.80} failed: {what}. It is not called again: from now on the requests of this session "
        "start in order of arrival. Correct the policy and open the session again.\n"
        f"{trace_of(error, __file__)}"
    )
