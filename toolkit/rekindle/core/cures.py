"""Cures for attributes, calls and subscripts of other libraries, typed on an object of this one."""

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, NoReturn, TypeVar

from rekindle.core.keywords import likely
from rekindle.core.tracebacks import with_short_traceback

T = TypeVar("T")


def cured(attributes: Mapping[tuple[str, ...], str], call: str = "", item: str = "") -> Callable[[type[T]], type[T]]:
    """Return a decorator of a class. An unknown attribute of its objects ends in a cure, and so does a wrong use.

    Args:
        attributes: the cures, by the names of attributes in other libraries.
        call: the cure of a call of the object; "" keeps Python's error.
        item: the cure of a subscript; "" keeps Python's error.
    """
    by_name = {name: cure for names, cure in attributes.items() for name in names}

    def decorate(kind: type[T]) -> type[T]:
        def unknown(self: T, name: str) -> Any:
            __tracebackhide__ = True  # hides this frame from notebook tracebacks
            if hasattr(kind, name):  # a property raised the error: let it raise its own
                return object.__getattribute__(self, name)
            cure = by_name.get(name) or ("" if name.startswith("_") else likely(name, _public(kind)))
            text = f"{kind.__name__!r} object has no attribute {name!r}{cure and f'; {cure}'}"
            raise with_short_traceback(AttributeError(text))

        def called(self: T, *arguments: Any, **options: Any) -> NoReturn:
            raise with_short_traceback(TypeError(f"{kind.__name__!r} object is not callable; {call}"))

        def subscripted(self: T, place: Any) -> NoReturn:
            raise with_short_traceback(TypeError(f"{kind.__name__!r} object is not subscriptable; {item}"))

        changed: Any = kind
        changed.__getattr__ = OfObjects(unknown)
        if call:
            changed.__call__ = called
        if item:
            changed.__getitem__ = subscripted
            changed.__iter__ = None  # a subscript alone would make it iterable
        return kind

    return decorate


class OfObjects:
    """Method of objects alone: IPython completes no call of an object whose class shows a `__getattr__`."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __get__(self, instance: object, owner: type) -> MethodType:
        if instance is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self._function.__name__!r}")
        return MethodType(self._function, instance)


def _public(kind: type) -> list[str]:
    """Return the public names of a class, with the attributes of its annotations."""
    return [name for name in {*dir(kind), *getattr(kind, "__annotations__", ())} if not name.startswith("_")]
