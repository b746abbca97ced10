"""Actors and the mailboxes between them, and the only dispatch loop in the package."""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import anyio

from rekindle.messages import Message

T = TypeVar("T")
PULSE_SECONDS = 0.1


class Actor(Protocol):
    """Takes one message and says others. It owns its state; it is told nothing else and knows no other actor."""

    def handle(self, message: Message) -> Iterable[Message] | Awaitable[Iterable[Message]]:
        """Take in a message; awaitable only where something has to be waited for."""


async def run(actor: Actor, mailbox: "Mailbox[Message]", send: Callable[[Message], None]) -> None:
    """Receive, handle, send on, for ever."""
    while True:
        outcome = actor.handle(await mailbox.receive())
        for message in await outcome if isinstance(outcome, Awaitable) else outcome:
            send(message)


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

    async def wait(self, pulse: bool = False) -> None:
        """Wait for `wake`.

        Args:
            pulse: keep an asyncio loop turning meanwhile. Asleep in its selector it would not see that a signal
                handler cancelled the task, so 'interrupt kernel' would take effect only at the end. trio wakes itself.
        """
        pulses = _Pulses(asyncio.get_running_loop()) if pulse and not _in_trio() else None
        try:
            await self._event.wait()
        finally:
            if pulses is not None:
                pulses.stop()


class _Pulses:
    """Does nothing, every `PULSE_SECONDS`. A timer rather than a timeout, which an interrupt would be blamed on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._beat()

    def _beat(self) -> None:
        self._timer = self._loop.call_later(PULSE_SECONDS, self._beat)

    def stop(self) -> None:
        self._timer.cancel()


class Mailbox(Generic[T]):
    """Messages from any thread, in order, to the one task that receives them."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiter: Waiter | None = None

    def put(self, item: T) -> None:
        """Leave a message and wake the receiver. Never blocks."""
        self._items.append(item)
        if waiter := self._waiter:
            waiter.wake()

    async def receive(self) -> T:
        """The next message, waiting for it if there is none."""
        while not self._items:
            self._waiter = Waiter()
            if not self._items:  # a message that came before the waiter stood there has woken nobody
                await self._waiter.wait()
            self._waiter = None
        return self._items.popleft()


def _call_soon_of_running_loop() -> Callable[[Callable[[], object]], object]:
    if _in_trio():
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon
    return asyncio.get_running_loop().call_soon_threadsafe


def _in_trio() -> bool:
    """Whether trio runs this. Asked before asyncio, since a notebook may run trio within an asyncio loop."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True
