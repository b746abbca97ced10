"""Feeds, which one thread writes and any task or thread can follow: the bridge from the engine to its callers."""

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
"""How long a blocking wait may be deaf to an interrupt that did not wake it."""
TO_THE_END = sys.maxsize
"""The value of `seen` that waits until the feed is closed. Each wake-up for an item would cost a switch of threads."""


class Feed(Generic[T]):
    """A list that grows until it is closed. One thread writes it; readers may come at any time, and read all of it."""

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
        """Tell whether nothing more will come."""
        return self._closed

    def put(self, item: T) -> None:
        """Add an item, and wake those who wait for it."""
        self._items.append(item)
        self._wake()

    def close(self) -> None:
        """Close the feed, and wake all who wait."""
        self._closed = True
        self._wake()
        self._tell_of_the_end()

    def when_closed(self, call: Callable[[], None]) -> None:
        """Have a function called once: by the thread that closes the feed, or now if it is closed.

        It must be quick, and must not raise.
        """
        self._at_close.append(call)
        if self._closed:
            self._tell_of_the_end()

    def follow(self, call: Callable[[], object]) -> None:
        """Have a function called at every item from now on, and at the end, by the thread that writes.

        It must be quick, and must not raise.
        """
        self._waiting.append((call, -1))

    async def wait(self, seen: int, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait until there are more than `seen` items or the feed is closed; the loop keeps turning meanwhile.

        Returns:
            False if `timeout` seconds passed first.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        if not self._has_more(seen):
            waiter = Waiter()
            waiting = waiter.wake, seen
            self._waiting.append(waiting)
            try:
                if not self._has_more(seen):  # an item that came before the waiter was added woke nobody
                    await waiter.wait(pulse=True, timeout=timeout)
            finally:
                self._waiting.remove(waiting)
        return self._has_more(seen)

    def wait_blocking(self, seen: int, timeout: float | None = None) -> bool:
        """Wait as `wait` does, on a thread without a loop. An interrupt ends it even if it blocks a loop."""
        __tracebackhide__ = True
        grown = threading.Event()
        waiting = grown.set, seen
        self._waiting.append(waiting)
        try:
            with interruptible():
                return self._has_more(seen) or _set(grown, timeout)
        finally:
            self._waiting.remove(waiting)

    def _has_more(self, seen: int) -> bool:
        return self._closed or len(self._items) > seen

    def _tell_of_the_end(self) -> None:
        while self._at_close:
            try:
                call = self._at_close.pop()
            except IndexError:  # another thread took it
                return
            call()

    def _wake(self) -> None:
        for wake, seen in tuple(self._waiting):
            if self._has_more(seen):
                wake()


def _set(event: threading.Event, timeout: float | None) -> bool:
    """Wait as the event does, and wake now and then.

    Python hears of an interrupt only when its main thread runs. One that the system has given to another thread does
    not wake that, nor does any on Windows.
    """
    ends = None if timeout is None else monotonic() + timeout
    while True:
        left = HEARING_SECONDS if ends is None else min(HEARING_SECONDS, ends - monotonic())
        if event.wait(max(0.0, left)):
            return True
        if ends is not None and monotonic() >= ends:
            return False


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interrupt raise KeyboardInterrupt in a wait that blocks a running asyncio loop.

    The handlers of ipykernel and of `asyncio.run` only tell their loop, which cannot listen while it is blocked. So in
    a cell that awaits anything, a blocking wait would hear of an interrupt only at its end.
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
