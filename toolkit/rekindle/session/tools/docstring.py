"""What a function's docstring says of it and of its parameters."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_SECTION = re.compile(r"(args|arguments|parameters|params)\s*:\s*$", re.IGNORECASE)
_OTHER = re.compile(r"(returns?|raises|yields?|examples?|notes?|warns?)\s*:", re.IGNORECASE)
_ARGUMENT = re.compile(r"(?P<indent>\s*)\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")
_FIELD = re.compile(r"\s*:param\s+(?:[\w\[\], |.]+\s+)?(?P<name>\w+)\s*:\s*(?P<text>.*)$")
_ANY_FIELD = re.compile(r"\s*:\w+[^:]*:")


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
    """Return what a function's docstring says: in a section "Args:", by ":param name:", or as plain text alone."""
    text = inspect.getdoc(function) if getattr(function, "__doc__", None) else None
    summary: list[str] = []
    parameters: dict[str, list[str]] = {}
    section, current, depth = "summary", None, -1
    for line in (text or "").splitlines():
        field = _FIELD.match(line)
        if field is not None:
            section, current = "field", parameters.setdefault(field["name"], [field["text"]])
        elif _SECTION.match(line):
            section, current, depth = "arguments", None, -1
        elif _OTHER.match(line) or (section == "field" and _ANY_FIELD.match(line)):
            section, current = "other", None
        elif section == "summary":
            summary.append(line)
        elif section == "arguments" and line.strip():
            found = _ARGUMENT.match(line)
            indent = len(line) - len(line.lstrip())
            if indent == 0:
                section, current = "other", None
            elif found is not None and (depth < 0 or indent <= depth):
                depth, current = indent, parameters.setdefault(found["name"], [found["text"]])
            elif current is not None:
                current.append(line.strip())
        elif section == "field" and current is not None:
            current.append(line.strip())
    return Docstring(_joined(summary), {name: _joined(lines) for name, lines in parameters.items()})


def _joined(lines: list[str]) -> str:
    """Return lines as paragraphs: a line that is empty parts them."""
    paragraphs = "\n".join(lines).strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
