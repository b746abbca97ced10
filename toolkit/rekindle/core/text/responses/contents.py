"""What the text of a part of an answer means: a text, a number, JSON, or pairs of keys and values."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

Arguments = Mapping[str, Any]


class Malformed(ValueError):
    """A text that does not mean what its place in an answer asks for."""


def parsed(name: str, text: str, arguments: Arguments) -> Any:
    """Return what a text means.

    Args:
        name: one of `NAMES`.
        arguments: further settings of the reader of this name.

    Raises:
        Malformed: it means nothing of the kind.
    """
    return _READERS[name](text, arguments)


def is_inside(name: str, text: str, arguments: Arguments) -> bool:
    """Tell whether the end of a text is inside a string or a value, to which a mark that comes then belongs.

    Args:
        name, arguments: see `parsed`.
    """
    if name == "xml-inline" and "value_end" in arguments:
        begun = [found.end() for found in re.finditer(arguments["value_begin"], text)]
        ended = [found.end() for found in re.finditer(arguments["value_end"], text)]
        return bool(begun) and (not ended or ended[-1] < begun[-1])
    if name != "json" or "string_delims" in arguments:
        return False
    return '"' in _STRINGS.sub("", text)


def values_of(name: str, text: str, arguments: Arguments) -> tuple[list[Any], str]:
    """Return the values that a text has one after the other, and what else stands in it; of text as a rule one.

    Args:
        name, arguments: see `parsed`.

    Raises:
        Malformed: as `parsed`.
    """
    if name != "json" or arguments:
        return [parsed(name, text, arguments)], ""
    values, others, place = list[Any](), list[str](), 0
    while (begin := _VALUE.search(text, place)) is not None:
        value, end = _decoded(text, begin.start())
        values.append(value)
        others.append(text[place : begin.start()])
        place = end
    if not values:
        return [_json(text, arguments)], ""
    others.append(text[place:])
    return values, "".join(other for other in others if other.strip(_BETWEEN))


def stripped(text: str, arguments: Arguments) -> str:
    """Return the text itself, without the white space around it unless `strip` is False."""
    return text.strip() if arguments.get("strip", True) else text


class TrimmedText:
    """A text without the white space around it, which may go on after any of its pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._held = ""

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._pieces)

    def push(self, piece: str) -> str:
        """Take a piece, and return the text that is sure by now; white space at its end is held back."""
        text = self._held + piece
        if not self._pieces:
            text = text.lstrip()
        shown = text.rstrip()
        self._held = text[len(shown) :]
        if shown:
            self._pieces.append(shown)
        return shown


def _integer(text: str, arguments: Arguments) -> int:
    try:
        return int(stripped(text, arguments))
    except ValueError as error:
        raise Malformed(f"expected an integer, got {text!r:.80}") from error


def _float(text: str, arguments: Arguments) -> float:
    try:
        return float(stripped(text, arguments))
    except ValueError as error:
        raise Malformed(f"expected a number, got {text!r:.80}") from error


def _truth(text: str, arguments: Arguments) -> bool:
    return stripped(text, arguments).lower() in ("true", "1")


def _json(text: str, arguments: Arguments) -> Any:
    """Read JSON.

    Args:
        arguments: "string_delims" are pairs of marks that strings may be between; "unquoted_keys" lets keys be bare
            words; "allow_non_json" gives what is no JSON as text.
    """
    source, strings = text, dict[str, str]()
    for opening, closing in arguments.get("string_delims", ()):
        source = _without_strings(source, opening, closing, strings)
    if arguments.get("unquoted_keys"):
        source = re.sub(r"([{,])(\w+):", r'\1"\2":', source)
    for placeholder, string in strings.items():
        source = source.replace(placeholder, json.dumps(string))
    try:
        return _DECODER.decode(source)
    except (ValueError, RecursionError) as error:
        if arguments.get("allow_non_json"):
            return stripped(text, arguments)
        raise Malformed(f"expected JSON, got {text.strip()!r:.200}: {error}") from error


def _decoded(text: str, place: int) -> tuple[Any, int]:
    """Return the JSON value that begins at a place of a text, and where it ends."""
    try:
        return _DECODER.raw_decode(text, place)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"expected JSON, got {text.strip()!r:.200}: {error}") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large a number")
    return number


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
_VALUE: Final = re.compile(r"[{\[]")
_BETWEEN: Final = " \t\r\n,;"
"""What may stand between values."""
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _without_strings(source: str, opening: str, closing: str, strings: dict[str, str]) -> str:
    """Return JSON with what is between two marks replaced by a placeholder that no other rule touches."""

    def replaced(match: re.Match[str]) -> str:
        placeholder = f"\x01{len(strings)}\x02"
        strings[placeholder] = match[1]
        return placeholder

    return re.sub(f"{re.escape(opening)}(.*?){re.escape(closing)}", replaced, source, flags=re.DOTALL)


def _tags(text: str, arguments: Arguments) -> dict[str, Any]:
    """Read tags, each a match of "tag_pattern" with the groups `key` and `value`.

    With a "whole_pattern", what is left without them has to match that.
    """
    import regex

    if "whole_pattern" in arguments:
        left = regex.sub(arguments["tag_pattern"], "", text, flags=regex.DOTALL)
        if regex.fullmatch(arguments["whole_pattern"], left, flags=regex.DOTALL) is None:
            raise Malformed(f"expected tags that are closed, got {text.strip()!r:.200}")
    found: dict[str, Any] = {}
    several: set[str] = set()
    for match in regex.finditer(arguments["tag_pattern"], text, flags=regex.DOTALL):
        groups = match.groupdict()
        key, value = groups["key"], _value(groups.get("value") or "", arguments)
        if key not in found or not arguments.get("merge_duplicates"):
            found[key] = value
            continue
        if key not in several:
            several.add(key)
            found[key] = [found[key]]
        found[key].append(value)
    return found


def _lines(text: str, arguments: Arguments) -> dict[str, Any]:
    """Read a key and a value of each line, which "line_sep" ends and whose key "kv_sep" ends."""
    found = {}
    for line in text.split(arguments.get("line_sep", "\n")):
        key, separator, value = stripped(line, arguments).partition(arguments.get("kv_sep", ":"))
        if separator:
            found[stripped(key, arguments)] = _value(stripped(value, arguments), arguments)
    return found


def _value(text: str, arguments: Arguments) -> Any:
    reader = arguments.get("value_parser")
    return text if reader is None else parsed(reader.get("name", "text"), text, reader.get("args", {}))


_READERS: Mapping[str, Callable[[str, Arguments], Any]] = {
    "text": stripped,
    "int": _integer,
    "float": _float,
    "bool": _truth,
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
NAMES = frozenset(_READERS)
