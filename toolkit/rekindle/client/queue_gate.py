"""Admission to the bounded waiting queue, decided on the client's side."""

import threading
from collections import OrderedDict

from rekindle.core.errors import QueueFull


class QueueGate:
    """Gate of the bounded waiting queue: admits requests in order, and queues the others outside.

    All methods are thread-safe and do not block.

    Args:
        most: the capacity of the waiting queue, in requests.
    """

    def __init__(self, most: int):
        self._most = most
        self._inside: set[int] = set()
        self._outside: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.RLock()  # the garbage collector may cancel a stream, and so re-enter, at any instruction

    def enter(self, request_id: int, *, wait: bool) -> bool:
        """Admit a request to the queue, or queue it outside.

        Returns:
            Whether the request was admitted; `leave` returns the requests admitted later.

        Raises:
            QueueFull: the queue is full and `wait` is False.
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
        """Raise QueueFull if the queue has no room."""
        if len(self._inside) >= self._most:
            raise self._full()

    def give_up(self, request_id: int) -> bool:
        """Withdraw a request queued outside; return whether it was there."""
        with self._lock:
            return self._outside.pop(request_id, self) is None

    def leave(self, request_id: int) -> int | None:
        """Remove a request from the queue; return the request admitted in its place, or None."""
        with self._lock:
            if request_id not in self._inside:
                return None
            self._inside.remove(request_id)
            try:
                admitted, _ = self._outside.popitem(last=False)
            except KeyError:  # no request is queued outside
                return None
            self._inside.add(admitted)
            return admitted

    def _full(self) -> QueueFull:
        return QueueFull(
            f"the waiting queue is full, max_waiting is {self._most}; await one of its requests first, use "
            "enqueue, generate or stream, which wait for room, or raise max_waiting in open()"
        )
