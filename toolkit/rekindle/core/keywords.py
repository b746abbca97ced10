"""Signatures of functions with `**options`, for `help` and completion."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def spelled_out(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator for a function with `**options`. The decorated signature has each option by name.

    Args:
        options: TypedDict of the options.
        defaults: default value of each option.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        first = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in options.__annotations__.items()
        ]
        spelled: Any = function
        spelled.__signature__ = signature.replace(parameters=[*first, *keywords])
        return function

    return decorate
