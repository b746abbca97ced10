"""Policies: functions that order the waiting requests, of which the first leaves the queue next. Two have names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.request import Request


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request as a policy sees it.

    Attributes:
        request: its prompt, its sampling parameters, its id.
        started: whether it ran before and was preempted.
        find: counts its tokens that are cached now, in any tier.
    """

    request: Request
    started: bool
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
