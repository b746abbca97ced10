"""Descriptions of functions and parameters from docstrings."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Docstring:
    """Descriptions from a docstring.

    Attributes:
        summary: the description of the function.
        parameters: the description of each parameter, by name.
    """

    summary: str
    parameters: dict[str, str]


def docstring_of(function: Callable[..., Any]) -> Docstring:
    """Parse a function's docstring in Google, NumPy, reST (":param name:") or plain style."""
    from docstring_parser import ParseError, parse

    text = inspect.getdoc(function) if getattr(function, "__doc__", None) else None
    try:
        parsed = parse(text or "")
    except ParseError:  # resembles one of these styles, but is malformed
        return Docstring(_join_lines(text or ""), {})
    summary = "\n\n".join(filter(None, (parsed.short_description, parsed.long_description)))
    return Docstring(
        _join_lines(summary), {each.arg_name.lstrip("*"): _join_lines(each.description or "") for each in parsed.params}
    )


def _join_lines(text: str) -> str:
    """Join the lines of each paragraph; an empty line separates paragraphs."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
