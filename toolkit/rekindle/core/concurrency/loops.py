"""Loops over what an engine says, for tasks and for threads that block."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

from rekindle.core.concurrency.waits import Waits, awaited, blocked

T = TypeVar("T")


class Loop(AsyncIterator[T], Iterator[T]):
    """Items that are waited for one by one, with `async for` or with `for`, in one place at a time."""

    def __init__(self) -> None:
        self._busy = Lock()

    @abstractmethod
    def close(self) -> None:
        """Give nothing further."""

    @abstractmethod
    def _next(self) -> Waits[T | None]:
        """Wait for the next item; return None where there is no other."""

    async def aclose(self) -> None:
        """Close the loop, as an async generator is closed."""
        self.close()

    async def __anext__(self) -> T:
        __tracebackhide__ = True  # a cell shows errors without such frames
        with self._alone():
            item = await awaited(self._next())
        if item is None:
            raise StopAsyncIteration
        return item

    def __next__(self) -> T:
        __tracebackhide__ = True
        try:
            with self._alone():
                item = blocked(self._next())
        except KeyboardInterrupt:  # which may come between any two instructions, and its traceback keeps this alive
            self.close()
            raise
        if item is None:
            raise StopIteration
        return item

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for an item in this place alone.

        Raises:
            RuntimeError: another loop waits for one, as where a generator is already running.
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                f"{self!r} is read by another loop already, and each item comes once: give each loop a stream of its "
                "own, or share what one of them reads"
            )
        try:
            yield
        finally:
            self._busy.release()
