"""Fields of a JSON body. Each supported field is taken once, and the remaining ones are unsupported."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from json import scanner
from typing import Any, Final, NoReturn, TypeVar

from rekindle.core.keywords import likely
from rekindle.core.request.checks import preview
from rekindle.server.common.errors import invalid_field

T = TypeVar("T")

IGNORED = frozenset(
    {
        "guided_decoding_backend",
        "max_tool_calls",
        "metadata",
        "model",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields without effect on the answer."""
HINTS = frozenset({"verbosity"})
"""Optional advice for a model. A strict server refuses values other than the neutral ones."""
LARGE: Final = 1 << 16
"""Bytes of a body from which on its parsing takes more than a few milliseconds."""
MOST_PARTS: Final = 100_000
"""Most objects and lists in a large body. The garbage collector walks through them while all threads stand still."""
MOST_FIELDS: Final = 1 << 19
"""Most fields of one object. All threads stand still while its table grows."""
_SPACE: Final = r"[ \t\n\r]*+"
_TEXT: Final = r'"[^"\\\x00-\x1f]{0,1000}+"'
_SCALAR: Final = rf"(?:{_TEXT}|-?(?:0|[1-9]\d{{0,30}})(?:\.\d{{1,30}})?(?:[eE][-+]?\d{{1,3}})?|true|false|null)"
# Possessive, because a long text behind few values would be walked through once more for each of its characters.
_VALUES: Final = re.compile(rf"(?:{_SPACE}{_SCALAR}{_SPACE},){{8,8192}}+", re.ASCII)
_FIELDS: Final = re.compile(rf"(?:{_SPACE}{_TEXT}{_SPACE}:{_SPACE}{_SCALAR}{_SPACE},){{8,8192}}+", re.ASCII)
_END: Final = re.compile(rf"{_SPACE}([,\]}}])?{_SPACE}")
_START: Final = re.compile(_SPACE)
Scan = Callable[[str, int], tuple[Any, int]]
NAMES = {str: "a string", bool: "true or false", int: "an integer", list: "a list", dict: "an object"}


class Fields:
    """The fields of one JSON object. A null field counts as absent.

    Args:
        values: the object.
        prefix: the prefix of its fields in errors, such as "stream_options."; empty for the body itself.
        strict: whether hints without effect on the model are refused instead of ignored.

    Attributes:
        notes: sentences about parts of the body without effect.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "", *, strict: bool = False):
        self.strict = strict
        self._remaining = {name: value for name, value in values.items() if value is not None}
        self._supported: dict[str, type[Any] | None] = {}
        self._prefix = prefix
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Note a part of the body without effect, for the log of the server."""
        self.notes.append(text)

    def peek(self, names: Collection[str]) -> dict[str, Any]:
        """Return the present fields among `names`, without taking them."""
        return {name: self._remaining[name] for name in names if name in self._remaining}

    def replace(self, name: str, values: Mapping[str, Any]) -> None:
        """Replace some fields of an object in a field by others, or add the object."""
        current = self._remaining.get(name)
        self._remaining[name] = {**(current if isinstance(current, dict) else {}), **values}

    @property
    def supported(self) -> Mapping[str, type[Any] | None]:
        """The fields that were looked for so far, with their types; None for several types."""
        return self._supported

    def any(self, name: str) -> Any:
        """Take a field of any type; None if absent."""
        self._supported.setdefault(name, None)
        return self._remaining.pop(name, None)

    def take(self, name: str, kind: type[T]) -> T | None:
        """Take a field of type `kind`; None if absent.

        Raises:
            ApiError: the field has another type.
        """
        self._supported[name] = kind
        value = self.any(name)
        if value is not None and type(value) is not kind:
            raise invalid_field(
                self._prefix + name, f"{self._prefix}{name} must be {NAMES[kind]}, got {preview(value)}"
            )
        return value

    def require(self, name: str, kind: type[T]) -> T:
        """Take a field of type `kind`.

        Raises:
            ApiError: the field is missing or has another type.
        """
        value = self.take(name, kind)
        if value is None:
            self.refuse_missing(name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Take a boolean field; `default` if absent."""
        value = self.take(name, bool)
        return default if value is None else value

    def take_fields(self, name: str) -> "Fields | None":
        """Take an object and return its fields; None if absent."""
        values = self.take(name, dict)
        if values is None:
            return None
        inner = Fields(values, f"{self._prefix}{name}.", strict=self.strict)
        inner.notes = self.notes
        return inner

    def items(self, name: str, kind: type[T]) -> list[T] | None:
        """Take a non-empty list with items of type `kind`; None if absent.

        Raises:
            ApiError: the field has another type, or the list is empty.
        """
        value = self.take(name, list)
        if value is None:
            return None
        if not value or any(type(each) is not kind for each in value):
            rule = f"must be a non-empty list with each item {NAMES[kind]}"
            raise invalid_field(self._prefix + name, f"{self._prefix}{name} {rule}, got {preview(value)}")
        return value

    def unwrap_texts(self, name: str) -> None:
        """Replace a list of objects with a text alone, as in Jina's API, by the list of their texts."""
        value = self._remaining.get(name)
        if isinstance(value, list) and all(isinstance(each, dict) and list(each) == ["text"] for each in value):
            self._remaining[name] = [each["text"] for each in value]

    def refuse_missing(self, name: str) -> NoReturn:
        """Reject the body for a missing field."""
        raise invalid_field(self._prefix + name, f"{self._prefix}{name} is missing")

    def refuse(self, name: str, reason: str) -> NoReturn:
        """Reject the body for an invalid field."""
        raise invalid_field(self._prefix + name, f"{self._prefix}{name} {reason}")

    def finish(self, neutral: Mapping[str, Sequence[Any]], ignored: Collection[str] = IGNORED) -> None:
        """Raise if a remaining field is unknown or might change the answer.

        Args:
            neutral: for each of some fields, the values equivalent to an absent field.
            ignored: fields without effect, accepted with any value.

        Raises:
            ApiError: a remaining field is not in `ignored`, and its value is not neutral.
        """
        for name, value in self._remaining.items():
            if name in ignored or value in neutral.get(name, ()):
                continue
            if name in HINTS & neutral.keys() and not self.strict:
                continue
            if name in neutral:
                only = f"this server supports only {json.dumps(neutral[name][0])}"
                self.refuse(name, f"cannot be served: {only}, and other values might change the answer")
            suggestion = likely(name, sorted(self._supported.keys() | neutral.keys()))
            hint = f"; {suggestion}" if suggestion else ""
            self.refuse(name, f"cannot be served: it is unknown, and it might change the answer{hint}")

    def leave(self, neutral: Mapping[str, Sequence[Any]], ignored: Collection[str]) -> None:
        """Note remaining fields of unknown names and ignore them, as the server of their API does.

        A strict server refuses them, as `finish` does, which has the arguments and the errors.
        """
        unknown = self._remaining.keys() - neutral.keys() - set(ignored)
        if unknown and not self.strict:
            self.note(f"the fields {name_list([self._prefix + name for name in unknown])} are unknown")
            ignored = {*ignored, *unknown}
        self.finish(neutral, ignored)


def name_list(names: Sequence[str]) -> str:
    """Return the distinct names in a list of a client, in order and cut, for a note."""
    return ", ".join(f"{preview(name, 42)}" for name in sorted(set(names))[:9])


def parse_body(body: bytes, *, strict: bool = False) -> Fields:
    """Return the fields of a JSON body; `strict` as in `Fields`.

    Raises:
        ApiError: the body is not a JSON object.
    """
    try:
        value = load(body)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise invalid_field(None, f"the body is not JSON: {error.msg} at {position}") from None
    except (ValueError, RecursionError):
        raise invalid_field(None, "the body must be JSON in UTF-8 with finite numbers, and cannot be read") from None
    if not isinstance(value, dict):
        raise invalid_field(None, f"the body must be a JSON object, got {preview(value)}")
    return Fields(value, strict=strict)


def load(data: bytes, most_parts: float = MOST_PARTS) -> Any:
    """Return the value of JSON, read in small steps if it is large.

    Raises:
        ValueError: the data is no JSON in a Unicode encoding, or has a number that is not finite.
        RecursionError: the value is too deep.
        ApiError: the data is large, and has more objects and lists than `most_parts`.
    """
    if len(data) < LARGE:
        return json.loads(data, parse_constant=_reject_constant)
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    return LargeBodyDecoder(_reject_constant, most_parts).decode(text)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class LargeBodyDecoder(json.JSONDecoder):
    """Decoder of one large body in small steps.

    The decoder of `json` in C holds the interpreter's lock: 32 MB of small values stop all threads for seconds. This
    one is its twin in Python, with runs of numbers, short texts and fields read in C at once.

    Args:
        parse_constant: function for "NaN" and infinities; it raises.
        most_parts: the most objects and lists.
    """

    def __init__(self, parse_constant: Callable[[str], Any], most_parts: float = MOST_PARTS) -> None:
        super().__init__(parse_constant=parse_constant)
        self.parts, self.most_parts = 0, most_parts
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
                if len(fields) > MOST_FIELDS:
                    raise invalid_field(None, f"the body has an object of more than {MOST_FIELDS:,} fields")
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
        if self.parts > self.most_parts:
            raise invalid_field(
                None, f"the body has more than {self.most_parts:,} objects and lists: send several bodies"
            )


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
