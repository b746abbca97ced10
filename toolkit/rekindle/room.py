"""The bound of the waiting queue, kept on the callers' side: who finds no room waits outside, in order."""

import threading
from collections import deque
from collections.abc import Callable

Send = Callable[[], bool]
"""Puts a request on its way; False if its caller no longer wants it."""


class Room:
    """Places in the waiting queue. Any thread may call any method; none blocks.

    Args:
        places: how many requests may be in the queue.
    """

    def __init__(self, places: int):
        self.places = places
        self._free = places
        self._outside: deque[Send] = deque()
        self._lock = threading.Lock()

    def enter(self, send: Send, *, wait: bool) -> bool:
        """Send now if there is room, or else, with `wait`, as soon as there is.

        Returns:
            False if there is no room and `wait` is False: nothing was or will be sent.
        """
        with self._lock:
            if self._free == 0:
                if wait:
                    self._outside.append(send)
                return wait
            self._free -= 1
        if not send():
            self.leave()
        return True

    def leave(self) -> None:
        """Give a place back; the first of those outside takes it."""
        while True:
            with self._lock:
                if not self._outside:
                    self._free += 1
                    return
                send = self._outside.popleft()
            if send():
                return
