"""Parser of large JSON bodies in small steps.

The parser of `json` in C holds the interpreter's lock: 32 MB of small values stop all threads for seconds. This one is
its twin in Python, with runs of numbers, short texts and fields read in C at once.
"""

import json
import re
from collections.abc import Callable
from json import scanner
from typing import Any, Final

from rekindle.server.errors import invalid_field

LARGE: Final = 1 << 16
"""Bytes of a body from which on its parsing takes more than a few milliseconds."""
MOST_PARTS: Final = 250_000
"""Most objects and lists in a large body; each takes a hundred bytes of memory or more."""
_SPACE: Final = r"[ \t\n\r]*"
_TEXT: Final = r'"[^"\\\x00-\x1f]*"'
_SCALAR: Final = rf"(?:{_TEXT}|-?(?:0|[1-9]\d{{0,30}})(?:\.\d{{1,30}})?(?:[eE][-+]?\d{{1,3}})?|true|false|null)"
_VALUES: Final = re.compile(rf"(?:{_SPACE}{_SCALAR}{_SPACE},){{8,8192}}", re.ASCII)
_FIELDS: Final = re.compile(rf"(?:{_SPACE}{_TEXT}{_SPACE}:{_SPACE}{_SCALAR}{_SPACE},){{8,8192}}", re.ASCII)
_END: Final = re.compile(rf"{_SPACE}([,\]}}])?{_SPACE}")
_START: Final = re.compile(_SPACE)
Scan = Callable[[str, int], tuple[Any, int]]


class LargeBodyDecoder(json.JSONDecoder):
    """Decoder of one large body.

    Args:
        parse_constant: function for "NaN" and infinities; it raises.
    """

    def __init__(self, parse_constant: Callable[[str], Any]) -> None:
        super().__init__(parse_constant=parse_constant)
        self.parts = 0
        self.parse_array, self.parse_object = self._array, self._object
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def _array(self, start: tuple[str, int], scan: Scan) -> tuple[list[Any], int]:
        """Return the list behind a bracket, and its end; see `json.decoder.JSONArray`."""
        text, place = start
        self._count()
        values: list[Any] = []
        place = _after_space(text, place)
        if text[place : place + 1] == "]":
            return values, place + 1
        while True:
            if run := _VALUES.match(text, place):
                values += json.loads(f"[{run[0][:-1]}]")
                place = run.end()
            value, place = _scanned(text, _after_space(text, place), scan)
            values.append(value)
            place, is_last = _separator(text, place, "]")
            if is_last:
                return values, place

    def _object(self, start: tuple[str, int], strict: bool, scan: Scan, *_: Any) -> tuple[dict[str, Any], int]:
        """Return the object behind a brace, and its end; see `json.decoder.JSONObject`."""
        text, place = start
        self._count()
        fields: dict[str, Any] = {}
        place = _after_space(text, place)
        if text[place : place + 1] == "}":
            return fields, place + 1
        while True:
            if run := _FIELDS.match(text, place):
                fields |= json.loads(f"{{{run[0][:-1]}}}")
                place = run.end()
            place = _after_space(text, place)
            if text[place : place + 1] != '"':
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, place)
            name, place = json.decoder.scanstring(text, place + 1, strict)  # type: ignore[attr-defined]
            place = _after_space(text, place)
            if text[place : place + 1] != ":":
                raise json.JSONDecodeError("Expecting ':' delimiter", text, place)
            fields[name], place = _scanned(text, _after_space(text, place + 1), scan)
            place, is_last = _separator(text, place, "}")
            if is_last:
                return fields, place

    def _count(self) -> None:
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise invalid_field(None, f"the body has more than {MOST_PARTS:,} objects and lists: send several bodies")


def _scanned(text: str, place: int, scan: Scan) -> tuple[Any, int]:
    try:
        return scan(text, place)
    except StopIteration as error:
        raise json.JSONDecodeError("Expecting value", text, place) from error


def _after_space(text: str, place: int) -> int:
    match = _START.match(text, place)
    return place if match is None else match.end()


def _separator(text: str, place: int, end: str) -> tuple[int, bool]:
    """Return the place behind a comma or an end, and whether it is the end."""
    match = _END.match(text, place)
    sign = None if match is None else match[1]
    if match is None or sign not in (",", end):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
    return (match.end(), False) if sign == "," else (match.end(1), True)
