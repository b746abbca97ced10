"""Fields of a JSON body. Each supported field is taken once, and the remaining ones are unsupported."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from rekindle.core.errors import likely
from rekindle.core.request.checks import preview
from rekindle.server.errors import invalid_field
from rekindle.server.reading.json_body import LARGE, LargeBodyDecoder

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
        return None if values is None else Fields(values, f"{self._prefix}{name}.", strict=self.strict)

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


def name_list(names: Sequence[str]) -> str:
    """Return the distinct names in a list of a client, in order and cut, for a note."""
    return ", ".join(f"{name!r:.42}" for name in sorted(set(names))[:9])


def parse_body(body: bytes, *, strict: bool = False) -> Fields:
    """Return the fields of a JSON body; `strict` as in `Fields`.

    Raises:
        ApiError: the body is not a JSON object.
    """
    try:
        if len(body) < LARGE:
            value = json.loads(body, parse_constant=_reject_constant)
        else:
            value = LargeBodyDecoder(_reject_constant).decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise invalid_field(None, f"the body is not JSON: {error.msg} at {position}") from None
    except (ValueError, RecursionError):
        raise invalid_field(None, "the body must be JSON in UTF-8 with finite numbers, and cannot be read") from None
    if not isinstance(value, dict):
        raise invalid_field(None, f"the body must be a JSON object, got {preview(value)}")
    return Fields(value, strict=strict)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
