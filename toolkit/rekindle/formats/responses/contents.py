"""Conversion of an answer's text to values: text, numbers, JSON, Python calls, or key-value pairs."""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from rekindle.formats.patterns import SECONDS

Arguments = Mapping[str, Any]


class Malformed(ValueError):
    """Error for a text in the wrong format for its place in an answer."""


def parse(name: str, text: str, arguments: Arguments) -> Any:
    """Return the value of a text.

    Args:
        name: name of the format, one of `NAMES`.
        arguments: settings of the format.

    Raises:
        Malformed: the text does not have this format.
    """
    return _READERS[name](text, arguments)


def is_inside(name: str, text: str, arguments: Arguments) -> bool:
    """Return True if a text ends inside a string or value. A delimiter there is part of the string or value.

    Args:
        name, arguments: see `parse`.
    """
    if name == "xml-inline" and "value_end" in arguments:
        starts = [match.end() for match in re.finditer(arguments["value_begin"], text)]
        ends = [match.end() for match in re.finditer(arguments["value_end"], text)]
        return bool(starts) and (not ends or ends[-1] < starts[-1])
    if name not in ("json", "json-by-name") or "string_delims" in arguments:
        return name == "python-calls" and any(quote in _PYTHON_STRINGS.sub("", text) for quote in "\"'")
    return '"' in _STRINGS.sub("", text)


def parse_values(name: str, text: str, arguments: Arguments) -> tuple[list[Any], str]:
    """Return the consecutive values in a text (usually one), and the other text, without separators.

    Args:
        name, arguments: see `parse`.

    Raises:
        Malformed: see `parse`.
    """
    if name != "json" or arguments:
        return [parse(name, text, arguments)], ""
    values, rest, place = list[Any](), list[str](), 0
    while (begin := _VALUE.search(text, place)) is not None:
        value, end = _decode(text, begin.start())
        values.append(value)
        rest.append(text[place : begin.start()])
        place = end
    if not values:
        return [_json(text, arguments)], ""
    rest.append(text[place:])
    return values, "".join(text_between for text_between in rest if text_between.strip(_BETWEEN))


def strip(text: str, arguments: Arguments) -> str:
    """Return the text without surrounding whitespace, unless the setting "strip" is False."""
    return text.strip() if arguments.get("strip", True) else text


class TrimmedText:
    """Growing text without surrounding whitespace."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._pending = ""

    @property
    def text(self) -> str:
        """The trimmed text so far."""
        return "".join(self._pieces)

    def push(self, piece: str) -> str:
        """Append a piece, and return the newly final text. Trailing whitespace is buffered."""
        text = self._pending + piece
        if not self._pieces:
            text = text.lstrip()
        visible = text.rstrip()
        self._pending = text[len(visible) :]
        if visible:
            self._pieces.append(visible)
        return visible


def _integer(text: str, arguments: Arguments) -> int:
    try:
        return int(strip(text, arguments))
    except ValueError as error:
        raise Malformed(f"expected an integer, got {text!r:.80}") from error


def _float(text: str, arguments: Arguments) -> float:
    try:
        return float(strip(text, arguments))
    except ValueError as error:
        raise Malformed(f"expected a number, got {text!r:.80}") from error


def _boolean(text: str, arguments: Arguments) -> bool:
    return strip(text, arguments).lower() in ("true", "1")


def _json(text: str, arguments: Arguments) -> Any:
    """Parse JSON.

    Args:
        arguments: "string_delims": pairs of delimiters for strings; "unquoted_keys": whether keys may be bare words;
            "allow_non_json": whether to return invalid JSON as text.
    """
    source, strings = text, dict[str, str]()
    for opening, closing in arguments.get("string_delims", ()):
        source = _without_strings(source, opening, closing, strings)
    if arguments.get("unquoted_keys"):
        source = _BARE_KEY.sub(lambda match: match[1] or f'{match[2]}"{match[3]}":', source)
    for placeholder, string in strings.items():
        source = source.replace(placeholder, json.dumps(string))
    try:
        return _DECODER.decode(source)
    except (ValueError, RecursionError) as error:
        if arguments.get("allow_non_json"):
            return strip(text, arguments)
        raise Malformed(f"expected JSON, got {text.strip()!r:.200}: {error}") from error


def _decode(text: str, place: int) -> tuple[Any, int]:
    """Return the JSON value at a position of a text, and its end position."""
    try:
        return _DECODER.raw_decode(text, place)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"expected JSON, got {text.strip()!r:.200}: {error}") from error


def _by_name(text: str, arguments: Arguments) -> list[dict[str, Any]]:
    """Parse a JSON list of objects with one key each, the name of a call, and its arguments."""
    values = _json(text, {})
    calls = values if isinstance(values, list) else [values]
    if not all(isinstance(call, dict) and len(call) == 1 for call in calls):
        raise Malformed(f"expected a list of objects with one name each, got {text.strip()!r:.200}")
    return [{"name": name, "arguments": value} for call in calls for name, value in call.items()]


def _python_calls(text: str, arguments: Arguments) -> list[dict[str, Any]]:
    """Parse calls in Python's syntax, alone or in a list, whose arguments are literals with keywords."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return [_python_call(node) for node in (tree.elts if isinstance(tree, ast.List) else [tree])]
    except Malformed:
        raise
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Malformed(f"expected calls in Python, got {text.strip()!r:.200}: {error}") from error


def _python_call(node: ast.expr) -> dict[str, Any]:
    start = ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):  # names of tools may have hyphens
        start, node = f"{ast.unparse(node.left)}-".replace(" ", ""), node.right
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise Malformed(f"expected a call with keywords, got {ast.unparse(node)!r:.200}")
    values = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    name = f"{start}{ast.unparse(node.func)}"
    if _PYTHON_NAME.fullmatch(name) is None:
        raise Malformed(f"expected the name of a tool, got {name!r:.200}")
    return {"name": name, "arguments": values}


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {str(_literal(key)): _literal(value) for key, value in zip(keys, values, strict=True) if key}
    try:
        value = ast.literal_eval(node)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise Malformed(f"expected a value, got {ast.unparse(node)!r:.200}") from error
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large for a number")
    return number


_DECODER: Final = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_no_number)
_VALUE: Final = re.compile(r"[{\[]")
_BETWEEN: Final = " \t\r\n,;"
"""Separators between values."""
_JSON_NAMES: Final = {"true": True, "false": False, "null": None}
_PYTHON_NAME: Final = re.compile(r"[\w.-]+")
_PYTHON_STRINGS: Final = re.compile(r"""("|')(?:(?!\1)[^\\]|\\.)*\1""", re.DOTALL)
_BARE_KEY: Final = re.compile(r'("(?:[^"\\]|\\.)*")|([{,])(\w+):', re.DOTALL)
"""A key without quotes; strings in quotes match first, so that no key is found in them."""
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _without_strings(source: str, opening: str, closing: str, strings: dict[str, str]) -> str:
    """Replace strings between two delimiters by placeholders. The other rules do not change placeholders."""

    def replace_string(match: re.Match[str]) -> str:
        placeholder = f"\x01{len(strings)}\x02"
        strings[placeholder] = match[1]
        return placeholder

    return re.sub(f"{re.escape(opening)}(.*?){re.escape(closing)}", replace_string, source, flags=re.DOTALL)


def _tags(text: str, arguments: Arguments) -> dict[str, Any]:
    """Parse tags, matches of "tag_pattern" with the groups `key` and `value`.

    If there is a "whole_pattern", the text outside the tags must match it.
    """
    import regex

    try:
        if "whole_pattern" in arguments:
            rest = regex.sub(arguments["tag_pattern"], "", text, flags=regex.DOTALL, timeout=SECONDS)
            if regex.fullmatch(arguments["whole_pattern"], rest, flags=regex.DOTALL, timeout=SECONDS) is None:
                raise Malformed(f"expected closed tags, got {text.strip()!r:.200}")
        matches = list(regex.finditer(arguments["tag_pattern"], text, flags=regex.DOTALL, timeout=SECONDS))
    except TimeoutError as error:
        raise Malformed(f"the pattern {arguments['tag_pattern']!r:.80} takes too long for it") from error
    values: dict[str, Any] = {}
    merged: set[str] = set()
    for match in matches:
        groups = match.groupdict()
        key, value = groups["key"], _value(groups.get("value") or "", arguments)
        if key not in values or not arguments.get("merge_duplicates"):
            values[key] = value
            continue
        if key not in merged:
            merged.add(key)
            values[key] = [values[key]]
        values[key].append(value)
    return values


def _lines(text: str, arguments: Arguments) -> dict[str, Any]:
    """Parse one key and value per line. Lines end with "line_sep", and keys with "kv_sep"."""
    values = {}
    for line in text.split(arguments.get("line_sep", "\n")):
        key, separator, value = strip(line, arguments).partition(arguments.get("kv_sep", ":"))
        if separator:
            values[strip(key, arguments)] = _value(strip(value, arguments), arguments)
    return values


def _value(text: str, arguments: Arguments) -> Any:
    reader = arguments.get("value_parser")
    return text if reader is None else parse(reader.get("name", "text"), text, reader.get("args", {}))


_READERS: Mapping[str, Callable[[str, Arguments], Any]] = {
    "text": strip,
    "int": _integer,
    "float": _float,
    "bool": _boolean,
    "json": _json,
    "json-by-name": _by_name,
    "python-calls": _python_calls,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
NAMES = frozenset(_READERS)
