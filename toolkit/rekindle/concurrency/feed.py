"""What one thread says and any task or thread can follow: the bridge from the engine to its callers."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from rekindle.concurrency.mailbox import Waiter

T = TypeVar("T")


TO_THE_END = sys.maxsize
"""As `seen`, waits until the feed is closed, and is not woken for each item: a wake-up costs its thread a switch."""


class _Wakeable(Protocol):
    def wake(self) -> None: ...


class Feed(Generic[T]):
    """A list that grows until it is closed. One thread writes; readers may come at any time, and read all of it."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._closed = False
        self._waiting: list[tuple[_Wakeable, int]] = []

    @property
    def items(self) -> Sequence[T]:
        """All that was put so far."""
        return self._items

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    def put(self, item: T) -> None:
        """Add an item and wake who waits."""
        self._items.append(item)
        self._wake()

    def close(self) -> None:
        """Say that nothing more will come."""
        self._closed = True
        self._wake()

    async def grown(self, seen: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait until there are more than `seen` items or the feed is closed; the loop keeps turning meanwhile.

        Returns:
            False if `timeout` seconds passed first.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        if not self._has_more(seen):
            waiter = Waiter()
            self._waiting.append((waiter, seen))
            try:
                if not self._has_more(seen):  # what came before the waiter stood there has woken nobody
                    await waiter.wait(pulse=True, timeout=timeout)
            finally:
                self._waiting.remove((waiter, seen))
        return self._has_more(seen)

    def grown_blocking(self, seen: int, timeout: float | None = None) -> bool:
        """The same for a thread without a loop; an interrupt ends it also where it blocks one."""
        __tracebackhide__ = True
        waiter = _ThreadWaiter()
        self._waiting.append((waiter, seen))
        try:
            with interruptible():
                return self._has_more(seen) or waiter.wait(timeout)
        finally:
            self._waiting.remove((waiter, seen))

    def _has_more(self, seen: int) -> bool:
        return self._closed or len(self._items) > seen

    def _wake(self) -> None:
        for waiter, seen in tuple(self._waiting):
            if self._has_more(seen):
                waiter.wake()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interrupt raise KeyboardInterrupt in a wait that blocks a running asyncio loop.

    The handlers of ipykernel and of `asyncio.run` only tell their loop, which cannot listen while it is blocked: in a
    cell that awaits anything, a blocking wait would hear of an interrupt at its end.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler) or not _in_asyncio():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _in_asyncio() -> bool:
    import asyncio

    return asyncio._get_running_loop() is not None


class _ThreadWaiter:
    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None) -> bool:
        return self._event.wait(timeout)
