"""Feeds: lists written by one thread and followed by any task or thread. They bridge the engine and its callers."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Generic, TypeVar

from rekindle.core.concurrency.mailbox import Waiter

T = TypeVar("T")


HEARING_SECONDS = 0.2
"""Longest delay of an interrupt that does not wake a blocking wait by itself."""
TO_THE_END = sys.maxsize
"""A `count` that waits for the end of the feed. Each wake-up for an item would cost a switch of threads."""


class Feed(Generic[T]):
    """A list that grows until closed. One thread writes it; readers may start at any time and read all of it."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._closed = False
        self._waiting: list[tuple[Callable[[], object], int]] = []
        self._at_close: list[Callable[[], None]] = []

    @property
    def items(self) -> Sequence[T]:
        """All items so far."""
        return self._items

    @property
    def closed(self) -> bool:
        """True once no further item will come."""
        return self._closed

    def put(self, item: T) -> None:
        """Add an item and wake the waiting readers."""
        self._items.append(item)
        if self._waiting:
            self._wake()

    def close(self) -> None:
        """Close the feed and wake all waiting readers."""
        self._closed = True
        self._wake()
        self._run_at_close()

    def when_closed(self, call: Callable[[], None]) -> None:
        """Register a function to call once: on the closing thread, or now if the feed is closed.

        It must be quick and must not raise.
        """
        self._at_close.append(call)
        if self._closed:
            self._run_at_close()

    def follow(self, call: Callable[[], object]) -> None:
        """Register a function to call on the writing thread, at every further item and at the end.

        It must be quick and must not raise.
        """
        self._waiting.append((call, -1))

    def has_more(self, count: int) -> bool:
        """Return True if there are more than `count` items or the feed is closed."""
        return self._closed or len(self._items) > count

    async def wait(self, count: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait until there are more than `count` items or the feed is closed, without blocking the loop.

        Returns:
            False if `timeout` seconds passed first.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        if not self.has_more(count):
            waiter = Waiter()
            waiting = waiter.wake, count
            self._waiting.append(waiting)
            try:
                if not self.has_more(count):  # an item put before the waiter was added woke nobody
                    await waiter.wait(pulse=True, timeout=timeout)
            finally:
                self._waiting.remove(waiting)
        return self.has_more(count)

    def wait_blocking(self, count: int, timeout: float | None = None) -> bool:
        """Wait like `wait` on a thread without a loop. An interrupt ends the wait even if it blocks a loop."""
        __tracebackhide__ = True
        more = threading.Event()
        waiting = more.set, count
        self._waiting.append(waiting)
        try:
            with interruptible():
                return self.has_more(count) or _set(more, timeout)
        finally:
            self._waiting.remove(waiting)

    def _run_at_close(self) -> None:
        while self._at_close:
            try:
                call = self._at_close.pop()
            except IndexError:  # another thread took it
                return
            call()

    def _wake(self) -> None:
        size, closed = len(self._items), self._closed
        for wake, count in tuple(self._waiting):
            if closed or size > count:
                wake()


def _set(event: threading.Event, timeout: float | None) -> bool:
    """Wait for an event in short intervals.

    Python handles an interrupt only when its main thread runs. An interrupt delivered to another thread does not wake
    the main thread, and on Windows no interrupt does.
    """
    ends = None if timeout is None else monotonic() + timeout
    while True:
        interval = HEARING_SECONDS if ends is None else min(HEARING_SECONDS, ends - monotonic())
        if event.wait(max(0.0, interval)):
            return True
        if ends is not None and monotonic() >= ends:
            return False


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at an interrupt of a wait that blocks a running asyncio loop.

    The handlers of ipykernel and of `asyncio.run` only notify their loop, which cannot react while blocked. In a cell
    with any await, a blocking wait would otherwise notice an interrupt only at its end.
    """
    handler = signal.getsignal(signal.SIGINT)
    blocks_a_loop = threading.current_thread() is threading.main_thread() and asyncio._get_running_loop() is not None
    if not blocks_a_loop or not callable(handler):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
