"""Bounds on the work of chat templates, which are code of a model's files: on turns of loops, calls, and products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import jinja2

MOST_TURNS: Final = 10_000_000
"""Most turns of loops and calls in one rendering: a loop over a thousand messages within another has a tenth."""
MOST_ITEMS: Final = 10_000_000
"""Most characters or items of a repeated text or list."""
MOST_BITS: Final = 4096
"""Most bits of a power."""
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
def environment_class() -> type[jinja2.Environment]:
    """Return the class of environments with bounds."""
    from jinja2 import TemplateRuntimeError, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def take() -> None:
        rest = _TURNS.get()
        if rest is not None:
            rest[0] -= 1
            if rest[0] < 0:
                raise TemplateRuntimeError(f"its loops and calls have no end: more than {MOST_TURNS:,} turns")

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**"))

        def __init__(self, **options: Any):
            super().__init__(**options)
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
            return super().call(__context, __obj, *args, **kwargs)

        def call_binop(self, context: Any, operator: str, first: Any, second: Any) -> Any:
            if _is_too_large(operator, first, second):
                raise TemplateRuntimeError("a product or a power in it is too large")
            return super().call_binop(context, operator, first, second)

    def _count_turns(values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            take()
            yield value

    return Bounded


def _is_too_large(operator: str, first: Any, second: Any) -> bool:
    """Return True if the result of a product or a power would be too large."""
    if operator == "**":
        return isinstance(first, int) and isinstance(second, int) and first.bit_length() * abs(second) > MOST_BITS
    sizes = [len(each) if isinstance(each, str | list | tuple) else each for each in (first, second)]
    repeats = any(isinstance(each, str | list | tuple) for each in (first, second))
    return repeats and all(isinstance(size, int) for size in sizes) and sizes[0] * sizes[1] > MOST_ITEMS
