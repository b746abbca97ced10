"""The bound of the waiting queue, kept on the callers' side."""

import threading
from collections import deque

from rekindle.errors import QueueFull


class Places:
    """Knows which requests have a place in the waiting queue, and which wait outside for one, in order.

    Any thread may call any method; none blocks.

    Args:
        most: how many requests may be in the queue.
    """

    def __init__(self, most: int):
        self._most = most
        self._inside: set[int] = set()
        self._outside: deque[int] = deque()
        self._lock = threading.Lock()

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
                raise QueueFull(
                    f"the waiting queue is full, max_waiting is {self._most}; await one of its requests first, use "
                    "generate or stream, which wait for room, or raise max_waiting in open()"
                )
            self._outside.append(request_id)
            return False

    def leave(self, request_id: int) -> int | None:
        """Take a request out of the queue, and return the first of those outside, if it has that place now."""
        with self._lock:
            if request_id not in self._inside:
                return None
            self._inside.remove(request_id)
            if not self._outside:
                return None
            entered = self._outside.popleft()
            self._inside.add(entered)
            return entered
