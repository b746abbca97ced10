"""Loops over streamed items, for tasks and for blocking threads."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

from rekindle.core.concurrency.waits import Waits, awaited, blocked

T = TypeVar("T")


class Loop(AsyncIterator[T], Iterator[T]):
    """An iterator that waits for its items, for `async for` and `for`; one loop at a time."""

    def __init__(self) -> None:
        self._busy = Lock()

    @abstractmethod
    def close(self) -> None:
        """End the loop; no further item follows."""

    @abstractmethod
    def _next(self) -> Waits[T | None]:
        """Wait for the next item; return None at the end."""

    async def aclose(self) -> None:
        """Close the loop, like an async generator."""
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
        except KeyboardInterrupt:  # it may come between any two instructions, and its traceback keeps this object alive
            self.close()
            raise
        if item is None:
            raise StopIteration
        return item

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude other loops while this one waits for an item.

        Raises:
            RuntimeError: another loop waits already, as for a running generator.
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                f"{self!r} is read by another loop already, and each item comes once: give each loop its own stream, "
                "or share the items of one loop"
            )
        try:
            yield
        finally:
            self._busy.release()
