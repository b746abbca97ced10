"""Objects not yet created, to be awaited, entered, or waited for."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

from rekindle.core.concurrency.waits import Waits, awaited, blocked
from rekindle.core.tracebacks import with_short_traceback

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


class Eventual(ABC, Generic[T]):
    """An object not yet created. Nothing happens before it is awaited, entered, or waited for."""

    _gives: ClassVar[type]
    """Class of the object."""
    _hint: ClassVar[str]
    """How to create the object, for the message of an AttributeError."""

    def __init__(self) -> None:
        self._entered = AsyncExitStack()

    @abstractmethod
    def _make(self) -> Waits[T]:
        """Create the object."""

    def __await__(self) -> Generator[Any, None, T]:
        return awaited(self._make()).__await__()

    def wait(self) -> T:
        """Block until the object is created, and return it."""
        return blocked(self._make())

    async def __aenter__(self) -> T:
        entered: T = await self._entered.enter_async_context(await self)
        return entered

    async def __aexit__(self, *raised: object) -> None:
        await self._entered.aclose()

    if not TYPE_CHECKING:  # a type checker finds a forgotten await by itself

        def __getattr__(self, name: str) -> NoReturn:
            __tracebackhide__ = True  # hides this frame from notebook tracebacks
            theirs = hasattr(self._gives, name) or name in inspect.get_annotations(self._gives)
            hint = f": {self._hint}" if theirs else ""
            text = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise with_short_traceback(AttributeError(text))
