"""The bound of the waiting queue, kept on the callers' side."""

import threading
from collections import OrderedDict

from rekindle.core.errors import QueueFull


class QueueGate:
    """Knows which requests have a place in the waiting queue, and which wait outside for one, in order.

    Any thread may call any method; none blocks.

    Args:
        most: how many requests may be in the queue.
    """

    def __init__(self, most: int):
        self._most = most
        self._inside: set[int] = set()
        self._outside: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.RLock()  # the garbage collector may have a stream give up at any instruction

    def enter(self, request_id: int, *, wait: bool) -> bool:
        """Give a request a place, or have it wait outside for one.

        Returns:
            Whether it has a place; `leave` returns those that get one later.

        Raises:
            QueueFull: there is no place, and `wait` is False.
        """
        with self._lock:
            if len(self._inside) < self._most:
                self._inside.add(request_id)
                return True
            if not wait:
                raise self._full()
            self._outside[request_id] = None
            return False

    def check_room(self) -> None:
        """Check that a request would get a place now; raise QueueFull if it would not."""
        if len(self._inside) >= self._most:
            raise self._full()

    def give_up(self, request_id: int) -> bool:
        """Wait for a place no longer; return whether the request did."""
        with self._lock:
            return self._outside.pop(request_id, self) is None

    def leave(self, request_id: int) -> int | None:
        """Take a request out of the queue, and return the first of those outside, if it has that place now."""
        with self._lock:
            if request_id not in self._inside:
                return None
            self._inside.remove(request_id)
            try:
                entered, _ = self._outside.popitem(last=False)
            except KeyError:  # nobody waits
                return None
            self._inside.add(entered)
            return entered

    def _full(self) -> QueueFull:
        return QueueFull(
            f"the waiting queue is full, max_waiting is {self._most}; await one of its requests first, use "
            "enqueue, generate or stream, which wait for room, or raise max_waiting in open()"
        )
