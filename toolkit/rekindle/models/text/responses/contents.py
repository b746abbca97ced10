"""What the text of a part of an answer means: a text, a number, JSON, or pairs of keys and values."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

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


def stripped(text: str, arguments: Arguments) -> str:
    """Return the text itself, without the white space around it unless `strip` is False."""
    return text.strip() if arguments.get("strip", True) else text


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
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        if arguments.get("allow_non_json"):
            return stripped(text, arguments)
        raise Malformed(f"expected JSON, got {text.strip()!r:.200}: {error}") from error


def _without_strings(source: str, opening: str, closing: str, strings: dict[str, str]) -> str:
    """Return JSON with what is between two marks replaced by a placeholder that no other rule touches."""

    def replaced(match: re.Match[str]) -> str:
        placeholder = f"\x01{len(strings)}\x02"
        strings[placeholder] = match[1]
        return placeholder

    return re.sub(f"{re.escape(opening)}(.*?){re.escape(closing)}", replaced, source, flags=re.DOTALL)


def _tags(text: str, arguments: Arguments) -> dict[str, Any]:
    """Read tags, each a match of "tag_pattern" with the groups `key` and `value`."""
    import regex

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
