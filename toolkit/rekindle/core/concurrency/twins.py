"""Methods that are written once, as operations, and offered twice: to be awaited, and to block."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast, get_args

from rekindle.core.concurrency.waits import Waits, awaited, blocked

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def awaitable(how: str) -> Callable[[Callable[P, Waits[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator of a function that returns an operation: it returns a coroutine then, which runs it.

    Args:
        how: what to write, such as "await session.generate(...)"; the repr of a coroutine has it.
    """

    def decorate(operation: Callable[P, Waits[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        async def run(*arguments: P.args, **options: P.kwargs) -> T:
            __tracebackhide__ = True  # a cell shows errors without such frames
            return await awaited(operation(*arguments, **options))

        def call(*arguments: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
            coroutine: Any = run(*arguments, **options)
            # It stays a real coroutine, which is what event loops take, so it is its name that says it.
            coroutine.__qualname__ = f"{operation.__qualname__}, to be awaited: `{how}`"
            return cast(Coroutine[Any, Any, T], coroutine)

        *_, returned = get_args(inspect.signature(operation).return_annotation)
        described: Any = _described(call, operation, returned)
        described.operation = operation
        return call

    return decorate


def blocking(method: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Return the twin of a method, which blocks until there is a result; its name ends in `_sync`.

    Args:
        method: one of `awaitable`, or one that returns an object with a method `wait`.
    """
    operation: Callable[P, Waits[T]] | None = getattr(method, "operation", None)

    def call(*arguments: P.args, **options: P.kwargs) -> T:
        __tracebackhide__ = True
        if operation is not None:
            return blocked(operation(*arguments, **options))
        pending: Any = method(*arguments, **options)
        result: T = pending.wait()
        return result

    name = method.__name__
    returned = inspect.Signature.empty if operation is None else inspect.signature(method).return_annotation
    described: Any = _described(call, method, returned)
    described.__name__, described.__qualname__ = f"{name}_sync", f"{method.__qualname__}_sync"
    described.__doc__ = f"Run `{name}`, and block until it has ended."
    return call


def _described(call: F, function: Callable[..., Any], returned: Any) -> F:
    """Have a function show the name, the docstring and the parameters of another, and what it returns itself."""
    described: Any = wraps(function)(call)
    described.__signature__ = inspect.signature(function).replace(return_annotation=returned)
    return call
