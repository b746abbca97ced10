"""Who leaves the waiting queue next. A policy is a function that orders candidates; those that are named are two."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.request import Request


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request as a policy sees it.

    Attributes:
        request: its prompt, its sampling parameters, its id.
        started: whether it ran before and lost its pages.
        find: counts its tokens that are cached now, in any tier.
    """

    request: Request
    started: bool
    find: Callable[[], int]

    @property
    def cached_tokens(self) -> int:
        """Its tokens that are cached now, in any tier; looked up each time."""
        return self.find()


Order = Callable[[Candidate], Any]
"""A key to sort candidates by, as for `sorted`: the lowest comes first, and of equal ones who came first."""


def longest_prefix(candidate: Candidate) -> tuple[bool, int]:
    """Who has lost its pages, then who has most in the cache."""
    return not candidate.started, -candidate.cached_tokens


NAMED: Mapping[str, Order | None] = {"fcfs": None, "longest-prefix": longest_prefix}
"""None keeps the order in which they came."""
