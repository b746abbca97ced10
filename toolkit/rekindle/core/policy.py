"""Policies: functions that order the waiting requests, of which the first leaves the queue next. Five have names."""

import hashlib
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rekindle.core.concurrency.warning import trace_of, warn_again
from rekindle.core.request.request import Request

T = TypeVar("T")
PATIENCE_TICKS = 1024
"""The ticks after which a request goes before all others, whatever its priority and the policy: 15 seconds for a small
model, a minute for a large one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request as a policy sees it.

    A policy is asked when a slot is free, so not in every tick. It orders requests of one priority among the first 64
    of the queue: those that lost their pages, and then the others as they came. The first in its order is admitted if
    there are enough pages for it. If there are not, those behind it wait too, even one that would fit. Otherwise small
    requests could keep a large one waiting for ever. For the same reason, whoever has waited for 1,024 ticks goes
    before all others, and is not shown to the policy.

    Attributes:
        request: its prompt, its sampling parameters, its id.
        started: whether it ran before and was preempted.
        waited: ticks that were planned since it came or, if it was preempted, since then.
        page_size: tokens in a page.
        path: finds the pages that it begins with and that are cached now, in any tier, from the first on.
    """

    request: Request
    started: bool
    waited: int
    page_size: int
    path: Callable[[], Sequence[Hashable]]

    @property
    def cached_tokens(self) -> int:
        """The number of its tokens that are cached now, in any tier; looked up at each access."""
        return len(self.path()) * self.page_size


Order = Callable[[Candidate], Any]
"""A key to sort candidates by, as for `sorted`: the lowest is first, and equal ones keep the order of arrival."""


def longest_prefix(candidate: Candidate) -> tuple[bool, int]:
    """Order preempted requests first, then the others by how much of them is cached."""
    return not candidate.started, -candidate.cached_tokens


def longest_output(candidate: Candidate) -> tuple[bool, int]:
    """Order preempted requests first, then the others by the tokens that they may generate, the most first."""
    return not candidate.started, len(candidate.request.prompt) - candidate.request.longest


def shuffled(candidate: Candidate) -> bytes:
    """Order by a hash of the request's id, which is the same in each run."""
    return hashlib.blake2b(str(candidate.request.id).encode(), digest_size=8).digest()


def dfs_weight(candidates: Sequence[Candidate]) -> Order:
    """Return the order of a depth-first walk through the cached prefixes, where more requests wait first.

    So requests that share a prefix start one after the other, while it is cached, as in SGLang's policy of this name.
    """
    paths = {candidate.request.id: candidate.path() for candidate in candidates}
    weights = Counter(page for path in paths.values() for page in path)
    ranks = {page: rank for rank, page in enumerate(weights)}  # equal weights in the order of arrival

    def order(candidate: Candidate) -> tuple[bool, list[tuple[int, int]]]:
        below = [(-weights[page], ranks[page]) for page in paths[candidate.request.id]]
        return not candidate.started, [*below, (0, 0)]  # after those whose prefix goes on

    return order


NAMED: Mapping[str, Callable[[Sequence[Candidate]], Order] | None] = {
    "fcfs": None,
    "longest-prefix": lambda candidates: longest_prefix,
    "dfs-weight": dfs_weight,
    "longest-output": lambda candidates: longest_output,
    "random": lambda candidates: shuffled,
}
"""What makes the order of candidates, by the name of the policy; None keeps the order of arrival."""


class Ordering:
    """A policy as it is applied. Once it has failed, it is not asked again, and requests keep the order of arrival.

    Args:
        policy: the name of one, or a function.
    """

    def __init__(self, policy: str | Order):
        self._policy = policy
        self._failed = False

    def ordered(self, waiting: Iterable[T], candidate: Callable[[T], Candidate]) -> list[T]:
        """Return those that wait in the policy's order. If the policy fails, warn, and return them as they are.

        Args:
            waiting: in the order of arrival.
            candidate: makes of one of them what the policy sees.
        """
        arrived, policy = list(waiting), self._policy
        make = NAMED[policy] if isinstance(policy, str) else lambda candidates: policy
        if make is None or self._failed:
            return arrived
        candidates = [candidate(each) for each in arrived]
        order: Any = policy
        try:
            order = make(candidates)
            keys = list(map(order, candidates))
            return [arrived[place] for place in sorted(range(len(arrived)), key=keys.__getitem__)]
        except Exception as error:
            self._failed = True
            code = getattr(order, "__code__", self.ordered.__code__)
            warn_again(_failure(order, error), code.co_filename, code.co_firstlineno)
            return arrived


def _failure(order: Order, error: Exception) -> str:
    """Return what is to be said of a policy that failed, with its calls down to the error and none of this package."""
    name = getattr(order, "__qualname__", repr(order))
    frames = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    what = "its keys cannot be compared" if frames == {__file__} else "it raised an error"
    return (
        f"the policy {name!s:.80} failed: {what}. It is not asked again, and from now on the requests of this session "
        "start in the order in which they came. Correct the policy and open the session again.\n"
        f"{trace_of(error, __file__)}"
    )
