"""Expressions over the escaped characters of a JSON string.

Each character has one escaped form, so concatenations, alternatives, repetitions and intersections of escaped
expressions accept exactly the escaped texts of the expressions themselves.
"""

import json
import re
from typing import Final

from rekindle.core.errors import InvalidRequest

_SPECIAL: Final = ('"', "\\", *map(chr, range(32)))
"""Characters with an escaped form."""
_ORDINARY: Final = r'[^"\\\x00-\x1f]'
_PARTS: Final = re.compile(
    r"(?P<escape>\\(?:[xuU]\{[^}]*\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[pP](?:\{[^}]*\}|\w)|.))"
    r"|(?P<header>\(\?(?:P?<\w+>|[a-zA-Z-]*[:)]))|(?P<count>\{[0-9, ]+\})|(?P<syntax>[|*+?()^$])|(?P<char>.)",
    re.DOTALL,
)
_CLASS_ESCAPE: Final = re.compile(r"\\[dDwWsSpP]")


def escaped_text(text: str) -> str:
    """Return a text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def escaped_regex(source: str, flags: str) -> str:
    """Return a regular expression over escaped characters.

    Args:
        source: the expression, in the notation of Rust.
        flags: its flags.

    Raises:
        InvalidRequest: the expression cannot be read.
    """
    if "x" in flags:
        raise InvalidRequest(f"a required call cannot have a regular expression with free spaces: {source!r:.80}")
    pieces, place = list[str](), 0
    every_line = "s" in flags or re.search(r"\(\?[a-zA-Z]*s", source) is not None
    while place < len(source):
        if source[place] == "[":
            end = _class_end(source, place)
            pieces.append(_class(source[place:end]))
        else:
            match = _PARTS.match(source, place)
            assert match is not None, "a part is any character"
            end = match.end()
            pieces.append(_part(match, every_line))
        place = end
    return "".join(pieces)


def _part(match: re.Match[str], every_line: bool) -> str:
    if match["char"] == ".":
        return _class(r"[\s\S]" if every_line else r"[^\n]")
    if match["escape"] and _CLASS_ESCAPE.match(match["escape"]):
        return _class(f"[{match['escape']}]")
    if match["escape"] or match["char"]:
        special = [char for char in _SPECIAL if _matches(match[0], char)]
        return _alternatives(special) if special else match[0]
    return match[0]


def _class(source: str) -> str:
    """Return the expression over escaped characters for a class of characters in brackets."""
    special = [char for char in _SPECIAL if _matches(source, char)]
    return f"(?:[{source}&&{_ORDINARY}]|{_alternatives(special)})" if special else source


def _alternatives(special: list[str]) -> str:
    """Return the expression for the escaped forms of characters."""
    forms = [re.escape(escaped_text(char)).replace("/", "\\/") for char in special]
    return f"(?-i:{'|'.join(forms)})"


def _class_end(source: str, start: int) -> int:
    """Return the end of a class in brackets; there may be classes inside the class."""
    place, depth = start, 0
    while place < len(source):
        char = source[place]
        if char == "\\":
            place += 1
        elif char == "[":
            depth += 1
            place += source[place + 1 : place + 2] == "^"
            place += source[place + 1 : place + 2] == "]"  # a first bracket is a character
        elif char == "]":
            depth -= 1
            if depth == 0:
                return place + 1
        place += 1
    raise InvalidRequest(f"a grammar has a regular expression without the end of its class: {source!r:.80}")


def _matches(expression: str, char: str) -> bool:
    """Return True if an expression for one character matches a character."""
    import regex

    expression = re.sub(r"\\[xuU]\{([^}]*)\}", lambda match: f"\\U{int(match[1], 16):08x}", expression)
    try:
        return regex.fullmatch(expression, char, flags=regex.V1) is not None
    except (regex.error, ValueError) as error:
        raise InvalidRequest(f"a grammar has a regular expression that cannot be read: {expression!r:.80}") from error
