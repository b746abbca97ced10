"""Bounds on the work of chat templates, which are code of a model's files: on turns of loops, calls, and results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import jinja2

MOST_TURNS: Final = 10_000_000
"""Most turns of loops and calls in one rendering: a loop over a thousand messages within another has a tenth."""
MOST_ITEMS: Final = 10_000_000
"""Most characters or items of a repeated, padded or joined text or list."""
MOST_BITS: Final = 4096
"""Most bits of a power."""
LONGEST_INDENT: Final = 1000
"""Most characters of an indent or of a line's end."""
_WIDE: Final = re.compile(r"%[-#0 +]*(?:\d{8}|\*|\d*\.(?:\d{8}|\*))|\{[^{}]*:[^{}]*\d{8}")
"""A width of 8 digits in a format, or one from the arguments of %."""
_PADS: Final = frozenset(
    (
        "batch",
        "center",
        "expandtabs",
        "format",
        "format_map",
        "generate_lorem_ipsum",
        "ljust",
        "rjust",
        "slice",
        "zfill",
    )
)
"""Filters, functions and methods of texts with a number of characters or items among their arguments."""
_INDENTS: Final = frozenset(("indent", "tojson", "wordwrap"))
_TURNS: Final[ContextVar[list[int] | None]] = ContextVar("turns", default=None)


@contextmanager
def bounded() -> Iterator[None]:
    """Bound the turns of a rendering within a `with` block."""
    token = _TURNS.set([MOST_TURNS])
    try:
        yield
    finally:
        _TURNS.reset(token)


@cache
def environment_class() -> Callable[..., jinja2.Environment]:
    """Return the class of environments with bounds, to be called with the filters of ours."""
    from jinja2 import TemplateRuntimeError, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def take() -> None:
        rest = _TURNS.get()
        if rest is not None:
            rest[0] -= 1
            if rest[0] < 0:
                raise TemplateRuntimeError(f"its loops and calls have no end: more than {MOST_TURNS:,} turns")

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**", "%"))

        def __init__(self, filters: Mapping[str, Callable[..., Any]], **options: Any):
            super().__init__(**options)
            self.filters = {name: bound(name, function) for name, function in {**self.filters, **filters}.items()}
            self.filters["_count_turns"] = _count_turns

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            """Count the turns of all loops."""
            tree = super()._parse(source, name, filename)
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "_count_turns", [], [], None, None, lineno=loop.lineno)
                loop.iter.set_environment(self)
            return tree

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
            take()
            value = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # str.format comes wrapped
            name = getattr(__obj, "__name__", "")
            check(name, value if isinstance(value, str) else "", (*args, *kwargs.values()))
            return super().call(__context, __obj, *args, **kwargs)

        def call_binop(self, context: Any, operator: str, first: Any, second: Any) -> Any:
            if _is_too_large(operator, first, second):
                raise TemplateRuntimeError("a product or a power in it is too large")
            return super().call_binop(context, operator, first, second)

    def check(name: str, value: Any, arguments: Sequence[Any]) -> None:
        if _grows(name, value, arguments):
            raise TemplateRuntimeError(f"the result of its {name} is too large")

    def bound(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that looks at its arguments first."""
        place = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            check(name, args[place] if len(args) > place else "", (*args[place + 1 :], *kwargs.values()))
            return function(*args, **kwargs)

        return run

    def _count_turns(values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            take()
            yield value

    return Bounded


def _is_too_large(operator: str, first: Any, second: Any) -> bool:
    """Return True if the result of a product, a power or a format would be too large."""
    if operator == "%":
        return isinstance(first, str) and _grows("format", first, (second,))
    if operator == "**":
        return isinstance(first, int) and isinstance(second, int) and first.bit_length() * abs(second) > MOST_BITS
    sizes = [len(each) if isinstance(each, str | list | tuple) else each for each in (first, second)]
    repeats = any(isinstance(each, str | list | tuple) for each in (first, second))
    return repeats and all(isinstance(size, int) for size in sizes) and sizes[0] * sizes[1] > MOST_ITEMS


def _grows(name: str, value: Any, arguments: Sequence[Any]) -> bool:
    """Return True if a filter, or a method of a text, would return too much: by a number, or by texts in a text."""
    texts = [each for each in arguments if isinstance(each, str)]
    largest = max((abs(each) for each in arguments if isinstance(each, int)), default=0)
    match name:
        case "replace" if len(texts) > 1:
            return len(texts[1]) > len(texts[0]) and str(value).count(texts[0]) * len(texts[1]) > MOST_ITEMS
        case "join":
            items, separator = (value, texts[0]) if texts else (next(iter(arguments), ()), value)
            return isinstance(items, Sized) and len(items) * len(str(separator)) > MOST_ITEMS
        case _ if name in _INDENTS:
            return max(largest, *map(len, texts), 0) > LONGEST_INDENT
    wide = name in ("format", "format_map") and _WIDE.search(str(value)) is not None
    return name in _PADS and (wide or largest > MOST_ITEMS)
