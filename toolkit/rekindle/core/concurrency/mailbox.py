"""Mailboxes: message queues from any thread to tasks under asyncio or trio."""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from rekindle.core.concurrency.interrupts import ended_by_interrupts

T = TypeVar("T")
PULSE_SECONDS = 0.1


class Waiter:
    """The wait of one task for a signal from any thread, under asyncio or trio. Serves for one wait."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = threading.get_ident()
        self._call_soon = _call_soon_of_running_loop()
        self._woken = False

    def wake(self) -> None:
        """End the wait. Only the first call reaches the waiting loop."""
        if self._woken:
            return
        self._woken = True
        with suppress(RuntimeError):  # the loop is closed, so no task waits any more
            if threading.get_ident() == self._thread:
                self._event.set()
            else:
                self._call_soon(self._event.set)

    async def wait(self, pulse: bool = False, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait for `wake`.

        Args:
            pulse: keep an asyncio loop responsive to interrupts; see `responsive`.
            timeout: seconds until the wait ends anyway; None waits forever.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        if in_trio():
            with anyio.move_on_after(timeout):
                await self._event.wait()
            return
        # A timeout of the loop itself would take the blame for an interrupt at the same moment.
        loop = asyncio.get_running_loop()
        timer = None if timeout is None else loop.call_later(timeout, self.wake)
        try:
            with responsive() if pulse else nullcontext():
                await self._event.wait()
        finally:
            if timer is not None:
                timer.cancel()


@contextmanager
def responsive() -> Iterator[None]:
    """Keep the running loop responsive to interrupts while a task waits.

    Asleep in its selector, an asyncio loop does not notice a task cancelled by a signal handler, so that 'interrupt
    kernel' would take effect only at the end of the wait. trio wakes itself.
    """
    if in_trio():
        yield
        return
    pulses = _Pulses(asyncio.get_running_loop())
    try:
        with ended_by_interrupts():
            yield
    finally:
        pulses.cancel()


class _Pulses:
    """A timer that wakes a loop every `PULSE_SECONDS`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._beat()

    def _beat(self) -> None:
        self._timer = self._loop.call_later(PULSE_SECONDS, self._beat)

    def cancel(self) -> None:
        self._timer.cancel()


_numbers = count()
"""Sequence numbers of the items of all mailboxes; they order items across mailboxes."""


class Mailbox(Generic[T]):
    """A thread-safe queue of messages for the receiving tasks of one loop; it can be paused."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, T]] = deque()
        self._waiters: list[Waiter] = []
        self._paused = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[T, ...]:
        """Queued messages, oldest first. Thread-safe."""
        return tuple(item for _, item in list(self._items))

    @property
    def oldest(self) -> int:
        """Sequence number of the oldest message; messages put later into any mailbox have higher numbers."""
        return self._items[0][0]

    def put(self, item: T) -> None:
        """Add a message and wake the receivers, without blocking."""
        self._items.append((next(_numbers), item))
        self._wake()

    def pause(self) -> None:
        """Make receivers wait, even if there are messages."""
        self._paused = True

    def resume(self) -> None:
        """Deliver messages to receivers again."""
        self._paused = False
        self._wake()

    def take(self) -> T | None:
        """Return the next message, even if paused; None if there is none."""
        return self._items.popleft()[1] if self._items else None

    async def receive(self) -> T:
        """Wait for the next message and return it. Other tasks always get a turn first."""
        if self._items:
            await checkpoint()
        while self._paused or not self._items:
            waiter = Waiter()
            self._waiters.append(waiter)
            try:
                if self._paused or not self._items:  # a message put before the waiter was added woke nobody
                    await waiter.wait()
            finally:
                self._waiters.remove(waiter)
        return self._items.popleft()[1]

    def _wake(self) -> None:
        for waiter in tuple(self._waiters):
            waiter.wake()


def _call_soon_of_running_loop() -> Callable[[Callable[[], object]], object]:
    if in_trio():
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def in_trio() -> bool:
    """Return True if trio runs this task. Check this before asyncio: a notebook may run trio within an asyncio loop."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()
    except (RuntimeError, AttributeError):  # the attribute is missing while another thread imports trio
        return False
    return True
