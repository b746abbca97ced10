"""What a function's docstring says of it and of its parameters."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring in parts.

    Attributes:
        summary: what the function does.
        parameters: what is said of each parameter, by name.
    """

    summary: str
    parameters: dict[str, str]


def docstring_of(function: Callable[..., Any]) -> Docstring:
    """Return what a function's docstring says, in Google's form, in NumPy's, by ":param name:", or as plain text."""
    from docstring_parser import ParseError, parse

    text = inspect.getdoc(function) if getattr(function, "__doc__", None) else None
    try:
        parsed = parse(text or "")
    except ParseError:  # it is almost of one of these forms
        return Docstring(_joined(text or ""), {})
    summary = "\n\n".join(filter(None, (parsed.short_description, parsed.long_description)))
    return Docstring(
        _joined(summary), {each.arg_name.lstrip("*"): _joined(each.description or "") for each in parsed.params}
    )


def _joined(text: str) -> str:
    """Return a text with a line for each paragraph: a line that is empty parts them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
