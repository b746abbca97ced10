"""Loops over what an engine says, for tasks and for threads that block."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from rekindle.concurrency.waits import Waits, awaited, blocked

T = TypeVar("T")


class Loop(AsyncIterator[T], Iterator[T]):
    """Items that are waited for one by one, with `async for` or with `for`."""

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
        if (item := await awaited(self._next())) is None:
            raise StopAsyncIteration
        return item

    def __next__(self) -> T:
        __tracebackhide__ = True
        try:
            item = blocked(self._next())
        except KeyboardInterrupt:  # which may come between any two instructions, and its traceback keeps this alive
            self.close()
            raise
        if item is None:
            raise StopIteration
        return item
