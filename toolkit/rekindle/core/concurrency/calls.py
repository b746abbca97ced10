"""Functions that tell how they are called, to `help`, to completion, and to who forgot an await."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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


def spelled_out(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator of a function that takes `**options`: its signature has each of them by name.

    Args:
        options: a TypedDict of all of them.
        defaults: the default of each.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        first = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in options.__annotations__.items()
        ]
        spelled: Any = function
        spelled.__signature__ = signature.replace(parameters=[*first, *named])
        return function

    return decorate
