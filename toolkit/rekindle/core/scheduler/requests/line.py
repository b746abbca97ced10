"""Waiting requests by priority and, within one priority, in the order in which they are to get pages."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from rekindle.core.scheduler.requests.tracked import Tracked


class Line:
    """A deque for each priority; the lowest number comes first."""

    def __init__(self) -> None:
        self._by_priority: dict[int, deque[Tracked]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_priority.values()))

    def __iter__(self) -> Iterator[Tracked]:
        for priority in sorted(self._by_priority):
            yield from self._by_priority[priority]

    def append(self, tracked: Tracked) -> None:
        """Put a request behind all others of its priority."""
        self._of(tracked).append(tracked)

    def appendleft(self, tracked: Tracked) -> None:
        """Put a request before all others of its priority."""
        self._of(tracked).appendleft(tracked)

    def remove(self, tracked: Tracked) -> None:
        """Take a request out."""
        priority = tracked.request.params.priority
        self._by_priority[priority].remove(tracked)
        if not self._by_priority[priority]:
            del self._by_priority[priority]

    def overdue(self, since: int, most: int) -> list[Tracked]:
        """Return the requests that joined at this tick or before, in the order in which they did.

        Args:
            most: looked at of each priority, so that the cost does not grow with the queue.
        """
        overdue: list[Tracked] = []
        for waiting in self._by_priority.values():
            for tracked in islice(waiting, most):
                if tracked.queued.joined <= since:
                    overdue.append(tracked)
                elif not tracked.started:  # those behind it came later; who was preempted stands before older ones
                    break
        return sorted(overdue, key=lambda tracked: tracked.queued.joined)

    def _of(self, tracked: Tracked) -> deque[Tracked]:
        return self._by_priority.setdefault(tracked.request.params.priority, deque())
