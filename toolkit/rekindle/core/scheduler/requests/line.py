"""Waiting requests by priority and, within one priority, in the order in which they are to get pages."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from rekindle.core.scheduler.requests.state import RequestState


class Line:
    """A deque for each priority; the lowest number comes first."""

    def __init__(self) -> None:
        self._by_priority: dict[int, deque[RequestState]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_priority.values()))

    def __iter__(self) -> Iterator[RequestState]:
        for priority in sorted(self._by_priority):
            yield from self._by_priority[priority]

    def append(self, state: RequestState) -> None:
        """Put a request behind all others of its priority."""
        self._of(state).append(state)

    def appendleft(self, state: RequestState) -> None:
        """Put a request before all others of its priority."""
        self._of(state).appendleft(state)

    def remove(self, state: RequestState) -> None:
        """Take a request out."""
        priority = state.request.params.priority
        self._by_priority[priority].remove(state)
        if not self._by_priority[priority]:
            del self._by_priority[priority]

    def overdue(self, since: int, most: int) -> list[RequestState]:
        """Return the requests that joined at this tick or before, in the order in which they did.

        Args:
            most: looked at of each priority, so that the cost does not grow with the queue.
        """
        overdue: list[RequestState] = []
        for waiting in self._by_priority.values():
            for state in islice(waiting, most):
                if state.queued.joined <= since:
                    overdue.append(state)
                elif not state.started:  # those behind it came later; who was preempted stands before older ones
                    break
        return sorted(overdue, key=lambda state: state.queued.joined)

    def _of(self, state: RequestState) -> deque[RequestState]:
        return self._by_priority.setdefault(state.request.params.priority, deque())
