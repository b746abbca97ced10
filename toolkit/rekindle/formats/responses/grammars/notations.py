"""Notations of arguments that are not JSON: Python's literals, and Gemma 4's objects."""

import keyword
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.formats.responses.grammars.terms import TextTerms, literal, text_of

_TEXT_LIMITS: Final = frozenset({"minLength", "maxLength", "pattern"})


@dataclass(frozen=True, slots=True)
class Notation:
    """Notation of a call's arguments. Its parser accepts JSON values too.

    Attributes:
        names: pattern of the names of tools.
        argument_names: pattern of the names of arguments; None for any name.
        argument_end: text between the name of an argument and its value.
        key_end: text between a key of an object and its value.
        separator: text between arguments, items, or keys.
        constants: terms of the boolean values and of null, by JSON type.
        mark: text around strings without escapes; None for strings as in Python.
        sorts: whether arguments and keys are in the order of the alphabet.
    """

    names: re.Pattern[str]
    argument_names: re.Pattern[str] | None
    argument_end: str
    key_end: str
    separator: str
    constants: Mapping[str, str]
    mark: str | None = None
    sorts: bool = False

    def can_name(self, name: str, *, is_argument: bool) -> bool:
        """Return True if a tool or an argument can have a name."""
        pattern = self.argument_names if is_argument else self.names
        return pattern is None or (pattern.fullmatch(name) is not None and unicodedata.normalize("NFKC", name) == name)

    def key(self, name: str) -> str:
        """Return the text of an object's key."""
        is_bare = self.mark is not None and _BARE.fullmatch(name)
        return f"{name if is_bare else literal(name)}{self.key_end}"

    def any_key(self) -> str:
        """Return the terms of any key."""
        return f"{_BARE_TERM if self.mark is not None else _PYTHON_TEXT} {literal(self.key_end)}"

    def text(self, name: str, schema: Mapping[str, Any], terms: TextTerms) -> tuple[str | None, list[str]]:
        """Return the term of a string with a schema, and its rules; None for a schema that is for JSON alone.

        Args:
            name: the name of the first rule.
            schema: the schema's keywords for strings.
            terms: converter of texts.
        """
        if not self.mark:
            return (None if schema else _PYTHON_TEXT), []
        if set(schema) - _TEXT_LIMITS:
            return None, []
        content, may_be_empty = text_of(schema, self.mark)
        mark, content_name, optional = terms.of(self.mark), f"{name}_text".upper(), "?" if may_be_empty else ""
        if not mark.startswith("<"):  # the terminal must be longer than any part of the mark
            return f"{mark} {content_name}", [f"{content_name}: ({content}){optional} {mark}"]
        return f"{mark} {content_name}{optional} {mark}", [f"{content_name}: {content}"]


_WORD: Final = rf"(?!(?:{'|'.join(keyword.kwlist)})\b)[^\W\d]\w*"
_BARE: Final = re.compile(r"\w+")
_BARE_TERM: Final = "/[A-Za-z0-9_]+/"
_PYTHON_TEXT: Final = r"""(/"([^"\\\x00-\x1f\x7f]|\\["'\\bfnrt])*"/ | /'([^'\\\x00-\x1f\x7f]|\\["'\\bfnrt])*'/)"""
"""Strings of Python whose escapes mean the same in JSON."""

PYTHON: Final = Notation(
    names=re.compile(rf"(?=[A-Za-z_]){_WORD}(?:[.-]{_WORD}|-[1-9]\d*)*"),
    argument_names=re.compile(_WORD),
    argument_end="=",
    key_end=": ",
    separator=", ",
    constants={"boolean": '("True" | "False" | "true" | "false")', "null": '("None" | "null")'},
)
GEMMA: Final = Notation(
    names=re.compile(r"[\w.-]+"),
    argument_names=None,
    argument_end=":",
    key_end=":",
    separator=",",
    constants={"boolean": '("true" | "false")', "null": '"null"'},
    mark='<|"|>',
    sorts=True,
)
