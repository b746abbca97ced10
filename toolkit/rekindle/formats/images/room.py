"""Room for the decoding of images: a bound of memory and of work at once, for all threads of the process."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Final, TypeAlias

from rekindle.core.errors import RequestCancelled

MOST_MEMORY: Final = 512 << 20
"""Most bytes for images decoded at once. A larger image is decoded alone."""
_ASK_SECONDS: Final = 0.2
"""Interval between two questions about the caller of a waiting image."""
Ended: TypeAlias = Callable[[], bool]
"""Function of the callers of an image: True once none is left."""


def never() -> bool:
    """Return False: the work always has a caller."""
    return False


def check_ended(ended: Ended) -> None:
    """Check for a caller of the work.

    Raises:
        RequestCancelled: nobody waits for the result.
    """
    if ended():
        raise RequestCancelled("the request was cancelled before its images were decoded")


class Room:
    """Memory and threads for decoding, given in order of arrival. Thread-safe.

    Args:
        most: the bytes of memory.
        at_once: the most images at a time.
    """

    def __init__(self, most: int, at_once: int):
        self._most, self._at_once = most, at_once
        self._changed = Condition()
        self._waiting: deque[object] = deque()
        self._sizes: list[int] = []

    @contextmanager
    def take(self, size: int, ended: Ended = never) -> Iterator[None]:
        """Wait for memory, and hold the memory during a block.

        Args:
            size: the bytes; the whole memory for more.
            ended: asked while the image waits.

        Raises:
            RequestCancelled: nobody waits for the image.
        """
        size, ticket = min(size, self._most), object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while self._waiting[0] is not ticket or not self._has_room(size):
                    check_ended(ended)
                    self._changed.wait(_ASK_SECONDS)
                self._sizes.append(size)
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            check_ended(ended)
            yield
        finally:
            with self._changed:
                self._sizes.remove(size)
                self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return len(self._sizes) < self._at_once and sum(self._sizes) + size <= self._most


ROOM: Final = Room(MOST_MEMORY, max(1, min(4, (os.cpu_count() or 1) // 2)))
"""The room of the process. Half of the cores stay free for engines."""
