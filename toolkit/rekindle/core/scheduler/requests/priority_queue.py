"""Queue of requests by priority, in admission order within each priority."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from rekindle.core.scheduler.requests.state import RequestState


class PriorityQueue:
    """Queued requests, the lowest priority number first; a part of the `WaitingQueue`."""

    def __init__(self) -> None:
        # By id, so that each of a hundred thousand requests can leave without a search.
        self._by_priority: dict[int, OrderedDict[int, RequestState]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_priority.values()))

    def __iter__(self) -> Iterator[RequestState]:
        for priority in sorted(self._by_priority):
            yield from self._by_priority[priority].values()

    def append(self, state: RequestState) -> None:
        """Add a request behind all others of its priority."""
        self._of(state)[state.request.id] = state

    def appendleft(self, state: RequestState) -> None:
        """Add a request before all others of its priority."""
        alike = self._of(state)
        alike[state.request.id] = state
        alike.move_to_end(state.request.id, last=False)

    def remove(self, state: RequestState) -> None:
        """Remove a request."""
        priority = state.request.params.priority
        del self._by_priority[priority][state.request.id]
        if not self._by_priority[priority]:
            del self._by_priority[priority]

    def overdue(self, since: int, most: int) -> list[RequestState]:
        """Return the requests queued at tick `since` or before, in the order of joining.

        Args:
            since: the latest tick of joining.
            most: the number of requests examined in each priority, to bound the cost for a long queue.
        """
        overdue: list[RequestState] = []
        for waiting in self._by_priority.values():
            for state in islice(waiting.values(), most):
                if state.queued.joined <= since:
                    overdue.append(state)
                elif not state.started:  # the rest joined later: only preempted requests are ahead of older ones
                    break
        return sorted(overdue, key=lambda state: state.queued.joined)

    def _of(self, state: RequestState) -> OrderedDict[int, RequestState]:
        return self._by_priority.setdefault(state.request.params.priority, OrderedDict())
