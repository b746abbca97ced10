"""Admission to the bounded waiting queue, decided on the client's side."""

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from heapq import heapify, heappop, heappush

from rekindle.core.errors import QueueFull

OVERTAKING = 64
"""Urgent requests that may enter while others are outside; then the oldest outside may enter, whatever its priority."""
LEVELS = 8
"""Priorities of which the queue is certain to have room for all; clients may choose any number of priorities."""


class QueueGate:
    """Gate of the bounded waiting queue: admits requests by priority, then in order, and queues the others outside.

    A request enters while fewer than `most` requests inside are at least as urgent, so an urgent request waits for no
    room behind others. At most `LEVELS` times as many requests are inside.

    All methods are thread-safe and do not block.

    Args:
        most: the capacity of the waiting queue, in requests of any one priority and the more urgent ones.
    """

    def __init__(self, most: int):
        self._most = most
        self._inside: dict[int, int] = {}  # the priority of each request
        self._priorities: list[int] = []  # of the requests inside, sorted
        self._outside = Outside()
        self._overtaking = 0
        self._lock = threading.RLock()  # the garbage collector may cancel a stream, and so re-enter, at any instruction

    def enter(self, request_id: int, *, priority: int = 0, wait: bool) -> bool:
        """Admit a request to the queue, or queue it outside.

        Returns:
            Whether the request was admitted; `leave` returns the requests admitted later.

        Raises:
            QueueFull: the queue is full and `wait` is False.
        """
        with self._lock:
            if self._has_room(priority):
                self._overtaking += len(self._outside) > 0
                self._admit(request_id, priority)
                return True
            if not wait:
                raise self._full()
            self._outside.add(request_id, priority)
            return False

    def check_room(self, priority: int = 0) -> None:
        """Raise QueueFull if the queue has no room for a request of this priority."""
        with self._lock:
            if not self._has_room(priority):
                raise self._full()

    def give_up(self, request_id: int) -> bool:
        """Withdraw a request queued outside; return whether it was there."""
        with self._lock:
            return self._outside.remove(request_id)

    def leave(self, request_id: int) -> int | None:
        """Remove a request from the queue; return the request admitted in its place, or None."""
        with self._lock:
            priority = self._inside.pop(request_id, None)
            if priority is None:
                return None
            del self._priorities[bisect_right(self._priorities, priority) - 1]
            following = self._take_following()
            if following is None:
                return None
            self._admit(*following)
            return following[0]

    def _take_following(self) -> tuple[int, int] | None:
        """Take the next request from outside, with its priority; None if there is none, or no room for it."""
        if self._overtaking >= OVERTAKING and self._has_room_for_oldest():
            self._overtaking = 0
            return self._outside.take_oldest()
        following = self._outside.first()
        if following is None or not self._has_room(following[1]):
            return None
        self._outside.remove(following[0])
        return following

    def _has_room(self, priority: int) -> bool:
        if len(self._inside) < self._most:
            return True
        return len(self._inside) < LEVELS * self._most and bisect_right(self._priorities, priority) < self._most

    def _has_room_for_oldest(self) -> bool:
        """Return True if few requests inside are at most as urgent; the scheduler starts all such requests in time."""
        oldest = self._outside.oldest()
        return oldest is not None and len(self._inside) - bisect_left(self._priorities, oldest[1]) < self._most

    def _admit(self, request_id: int, priority: int) -> None:
        self._inside[request_id] = priority
        insort(self._priorities, priority)

    def _full(self) -> QueueFull:
        return QueueFull(
            f"the waiting queue is full, max_waiting is {self._most}; await one of its requests first, use "
            "enqueue, generate or stream, which wait for room, or raise max_waiting in open()"
        )


class Outside:
    """The requests before the gate, by priority and then in order of arrival."""

    def __init__(self) -> None:
        self._priorities: OrderedDict[int, int] = OrderedDict()  # in order of arrival
        self._heap: list[tuple[int, int, int]] = []  # with requests that were removed since
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._priorities)

    def add(self, request_id: int, priority: int) -> None:
        """Queue a request behind those of its priority."""
        self._arrivals += 1
        self._priorities[request_id] = priority
        heappush(self._heap, (priority, self._arrivals, request_id))
        if len(self._heap) > 2 * len(self._priorities) + OVERTAKING:
            self._heap[:] = [each for each in self._heap if each[2] in self._priorities]
            heapify(self._heap)

    def remove(self, request_id: int) -> bool:
        """Remove a request, and return whether it was there."""
        return self._priorities.pop(request_id, None) is not None

    def first(self) -> tuple[int, int] | None:
        """Return the most urgent request and its priority; None if there is none."""
        while self._heap and self._heap[0][2] not in self._priorities:
            heappop(self._heap)
        return (self._heap[0][2], self._heap[0][0]) if self._heap else None

    def oldest(self) -> tuple[int, int] | None:
        """Return the request that waits longest, with its priority; None if there is none."""
        try:
            return next(iter(self._priorities.items()), None)
        except RuntimeError:  # the garbage collector removed a request meanwhile
            return self.oldest()

    def take_oldest(self) -> tuple[int, int] | None:
        """Remove and return the request that waits longest, with its priority; None if there is none."""
        try:
            return self._priorities.popitem(last=False)
        except KeyError:
            return None
