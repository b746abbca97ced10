"""Keywords that functions take as `**options`, spelled out for `help` and completion."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


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
