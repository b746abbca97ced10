"""Messages from any thread to the one task that waits for them, under asyncio or trio."""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")
PULSE_SECONDS = 0.1


class Waiter:
    """One task's wait for a sign from any thread, under asyncio or trio. Good for one wait."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._thread = threading.get_ident()
        self._call_soon = _call_soon_of_running_loop()
        self._woken = False

    def wake(self) -> None:
        """End the wait. At most one call reaches the waiting loop, however often this is called."""
        if self._woken:
            return
        self._woken = True
        with suppress(RuntimeError):  # the loop was closed, so nobody waits any more
            if threading.get_ident() == self._thread:
                self._event.set()
            else:
                self._call_soon(self._event.set)

    async def wait(self, pulse: bool = False, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait for `wake`.

        Args:
            timeout: seconds after which it ends in any case; None for never.
            pulse: keep an asyncio loop turning meanwhile. Asleep in its selector it would not see that a signal
                handler cancelled the task, so 'interrupt kernel' would take effect only at the end. trio wakes itself.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        if in_trio():
            with anyio.move_on_after(timeout):
                await self._event.wait()
            return
        # Not a timeout of the loop's, which an interrupt at the same moment would be blamed on.
        loop = asyncio.get_running_loop()
        timer = None if timeout is None else loop.call_later(timeout, self.wake)
        pulses = _Pulses(loop) if pulse else None
        try:
            await self._event.wait()
        finally:
            for started in (timer, pulses):
                if started is not None:
                    started.cancel()


class _Pulses:
    """Does nothing, every `PULSE_SECONDS`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._beat()

    def _beat(self) -> None:
        self._timer = self._loop.call_later(PULSE_SECONDS, self._beat)

    def cancel(self) -> None:
        self._timer.cancel()


_numbers = count()
"""Of all items in all mailboxes, so that the oldest of several is known."""


class Mailbox(Generic[T]):
    """Messages from any thread, in order, to the one task that receives them, unless it is paused."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, T]] = deque()
        self._waiter: Waiter | None = None
        self._paused = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[T, ...]:
        """What waits in it, oldest first. Any thread may ask."""
        return tuple(item for _, item in list(self._items))

    @property
    def oldest(self) -> int:
        """A number that is lower than those of all items, of any mailbox, that were put later than the first here."""
        return self._items[0][0]

    def put(self, item: T) -> None:
        """Leave a message and wake the receiver. Never blocks."""
        self._items.append((next(_numbers), item))
        self._wake()

    def pause(self) -> None:
        """Let the receiver wait even for messages that are there."""
        self._paused = True

    def resume(self) -> None:
        """Hand messages to the receiver again."""
        self._paused = False
        self._wake()

    def take(self) -> T | None:
        """The next message, paused or not; None if there is none."""
        return self._items.popleft()[1] if self._items else None

    async def receive(self) -> T:
        """The next message, waiting for it if there is none."""
        while self._paused or not self._items:
            self._waiter = Waiter()
            if self._paused or not self._items:  # what came before the waiter stood there has woken nobody
                await self._waiter.wait()
            self._waiter = None
        return self._items.popleft()[1]

    def _wake(self) -> None:
        if waiter := self._waiter:
            waiter.wake()


def _call_soon_of_running_loop() -> Callable[[Callable[[], object]], object]:
    if in_trio():
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def in_trio() -> bool:
    """Whether trio runs this. Asked before asyncio, since a notebook may run trio within an asyncio loop."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True
