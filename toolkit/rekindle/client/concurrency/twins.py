"""Methods written once, as operations, and offered in two forms: awaitable and blocking."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar, cast, get_args

from rekindle.core.concurrency.waits import Waits, awaited, blocked
from rekindle.core.keywords import called

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def awaitable(how: str) -> Callable[[Callable[P, Waits[T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator for a function returning an operation. The decorated function returns a coroutine for it.

    Args:
        how: the correct call, such as "await session.generate(...)", for the repr of the coroutine.
    """

    def decorate(operation: Callable[P, Waits[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        async def run(*arguments: P.args, **options: P.kwargs) -> T:
            __tracebackhide__ = True  # a cell shows errors without such frames
            return await awaited(called(operation, arguments, options))

        def call(*arguments: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
            coroutine: Any = run(*arguments, **options)
            # Event loops need a real coroutine, so the hint is in its name.
            coroutine.__qualname__ = f"{operation.__qualname__}, to be awaited: `{how}`"
            return cast(Coroutine[Any, Any, T], coroutine)

        *_, returned = get_args(inspect.signature(operation).return_annotation)
        described: Any = _described(call, operation, returned)
        described.operation = operation
        return call

    return decorate


def blocking(method: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Return the blocking twin of a method; its name ends in `_sync`.

    Args:
        method: a function decorated by `awaitable`, or a method returning an object with a `wait` method.
    """
    operation: Callable[P, Waits[T]] | None = getattr(method, "operation", None)

    def call(*arguments: P.args, **options: P.kwargs) -> T:
        __tracebackhide__ = True
        if operation is not None:
            return blocked(called(operation, arguments, options))
        pending: Any = method(*arguments, **options)
        result: T = pending.wait()
        return result

    name = method.__name__
    returned = inspect.Signature.empty if operation is None else inspect.signature(method).return_annotation
    described: Any = _described(call, method, returned)
    described.__name__ = f"{name.rstrip('_')}_sync"  # `continue_` has its underscore as it would be a keyword
    described.__qualname__ = f"{method.__qualname__.rstrip('_')}_sync"
    described.__doc__ = f"Run `{name}`, and block until it has ended."
    return call


def later(path: str, how: str = "") -> tuple[Any, Any]:
    """Return a method and its blocking twin, with an import of their module at the first use.

    Args:
        path: the full name of a function.
        how: the correct call, as for `awaitable`; empty for a function without an operation as its result.
    """

    @cache
    def method() -> Any:
        module, _, name = path.rpartition(".")
        function = getattr(import_module(module), name)
        return awaitable(how)(function) if how else function

    @cache
    def twin() -> Any:
        return blocking(method())

    return _Later(method), _Later(twin)


class _Later:
    """Method of a class, loaded at its first use."""

    def __init__(self, load: Callable[[], Any]):
        self._load = load

    def __get__(self, instance: object, owner: type) -> Any:
        return self._load().__get__(instance, owner)


def _described(call: F, function: Callable[..., Any], returned: Any) -> F:
    """Copy the name, docstring and parameters of another function, with this return annotation."""
    described: Any = wraps(function)(call)
    described.__signature__ = inspect.signature(function).replace(return_annotation=returned)
    return call
