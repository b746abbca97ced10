"""Policies: functions that order the waiting requests, of which the first leaves the queue next. Two have names."""

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rekindle.core.concurrency.warning import warn_again
from rekindle.core.request.request import Request

T = TypeVar("T")
FRAMES = 8
"""The most calls that the warning about a policy's error shows, the innermost ones."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request as a policy sees it.

    A policy is asked when a slot is free, so not in every tick. It sees the first 64 of the queue: those that lost
    their pages, and then the others as they came. The first in its order is admitted if there are enough pages for it.
    If there are not, those behind it wait too, even one that would fit. Otherwise small requests could keep a large
    one waiting for ever.

    Attributes:
        request: its prompt, its sampling parameters, its id.
        started: whether it ran before and was preempted.
        waited: ticks that were planned since it came or, if it was preempted, since then.
        find: counts its tokens that are cached now, in any tier.
    """

    request: Request
    started: bool
    waited: int
    find: Callable[[], int]

    @property
    def cached_tokens(self) -> int:
        """The number of its tokens that are cached now, in any tier; looked up at each access."""
        return self.find()


Order = Callable[[Candidate], Any]
"""A key to sort candidates by, as for `sorted`: the lowest is first, and equal ones keep the order of arrival."""


def longest_prefix(candidate: Candidate) -> tuple[bool, int]:
    """Order preempted requests first, then the others by how much of them is cached."""
    return not candidate.started, -candidate.cached_tokens


NAMED: Mapping[str, Order | None] = {"fcfs": None, "longest-prefix": longest_prefix}
"""The policies by name; None keeps the order of arrival."""


class Ordering:
    """A policy as it is applied. Once it has failed, it is not asked again, and requests keep the order of arrival.

    Args:
        policy: the name of one, or a function.
    """

    def __init__(self, policy: str | Order):
        self._order = NAMED[policy] if isinstance(policy, str) else policy

    def ordered(self, waiting: Iterable[T], candidate: Callable[[T], Candidate]) -> list[T]:
        """Return those that wait in the policy's order. If the policy fails, warn, and return them as they are.

        Args:
            waiting: in the order of arrival.
            candidate: makes of one of them what the policy sees.
        """
        arrived, order = list(waiting), self._order
        if order is None:
            return arrived
        try:
            return sorted(arrived, key=lambda each: order(candidate(each)))
        except Exception as error:
            self._order = None
            code = getattr(order, "__code__", self.ordered.__code__)
            warn_again(_failure(order, error), code.co_filename, code.co_firstlineno)
            return arrived


def _failure(order: Order, error: Exception) -> str:
    """Return what is to be said of a policy that failed, with its calls down to the error and none of this package."""
    calls = error.__traceback__
    while calls is not None and calls.tb_frame.f_code.co_filename == __file__:
        calls = calls.tb_next
    name = getattr(order, "__qualname__", repr(order))
    what = "its keys cannot be compared" if calls is None else "it raised an error"
    trace = "".join(traceback.format_exception(type(error), error, calls, limit=-FRAMES)).rstrip()
    return (
        f"the policy {name!s:.80} failed: {what}. It is not asked again, and from now on the requests of this session "
        f"start in the order in which they came. Correct the policy and open the session again.\n{trace}"
    )
