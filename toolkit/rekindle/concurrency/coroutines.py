"""Coroutine functions whose coroutines say what they wait for, where somebody forgot to await one."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def to_be_awaited(how: str) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator of a coroutine function whose coroutines say in their repr how to await them.

    They stay real coroutines, which is what event loops take. So it is their name that says it.

    Args:
        how: what to write, such as "await session.generate(...)".
    """

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
            coroutine: Any = function(*arguments, **options)
            coroutine.__qualname__ = f"{function.__qualname__}, to be awaited: `{how}`"
            return cast(Coroutine[Any, Any, T], coroutine)

        return call

    return decorate
