"""Least-recently-used queue, without a clock: its user numbers the uses."""

from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar


class Member(Protocol):
    """A member of the queue, hashable by identity, with the number of its last use and its depth in the tree."""

    last_used: int
    depth: int


T = TypeVar("T", bound=Member)

_SLACK = 64
"""Stale entries allowed in a heap of any size."""


class OldestFirst(Generic[T]):
    """Queue of members, the least recently used first; of equally recent ones, the deepest first.

    Pushing and popping cost O(log n), discarding O(1) amortised. Put a member again after each change of its
    `last_used`.
    """

    def __init__(self) -> None:
        self._used: dict[T, int] = {}
        # An entry is stale unless its member is in `_used` with the same number; `pop` skips it.
        self._heap: list[tuple[int, int, int, T]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, member: T) -> bool:
        return member in self._used

    def put(self, member: T) -> None:
        """Add a member, or move it to its new place."""
        if self._used.get(member) != member.last_used:
            self._used[member] = member.last_used
            self._pushes += 1
            heappush(self._heap, (member.last_used, -member.depth, self._pushes, member))
            self._shrink()

    def discard(self, member: T) -> None:
        """Remove a member, if present."""
        if self._used.pop(member, None) is not None:
            self._shrink()

    def pop(self) -> T | None:
        """Remove and return the least recently used member; None if the queue is empty."""
        while self._heap:
            used, _, _, member = heappop(self._heap)
            if self._used.get(member) == used:
                self.discard(member)
                return member
        return None

    def check(self) -> None:
        """Assert the invariants: each member has an entry at its place, and at most half of the heap is stale."""
        for member, used in self._used.items():
            assert used == member.last_used, "a member was used and not put again"
        assert set(self._used.items()) <= {(member, used) for used, _, _, member in self._heap}, "a member has no entry"
        assert len(self._heap) <= 2 * len(self._used) + _SLACK, "more than half of the heap is stale"

    def _shrink(self) -> None:
        if len(self._heap) > 2 * len(self._used) + _SLACK:
            self._heap = [(used, -member.depth, at, member) for at, (member, used) in enumerate(self._used.items())]
            self._pushes = len(self._heap)
            heapify(self._heap)
