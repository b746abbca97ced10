"""The fields of a body, each taken once, so that what is left over is what nobody knows."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from rekindle.core.errors import likely
from rekindle.core.request.checks import preview
from rekindle.server.refused import Refused, invalid

T = TypeVar("T")

IGNORED = frozenset(
    {
        "guided_decoding_backend",
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
"""Fields that change nothing of the answer."""
NAMES = {str: "a string", bool: "true or false", int: "an integer", list: "a list", dict: "an object"}


class Fields:
    """The fields of one JSON object. A field that is null is as one that is not given.

    Args:
        given: the object.
        where: what its fields are called after in errors, such as "stream_options."; empty for the body itself.
    """

    def __init__(self, given: Mapping[str, Any], where: str = ""):
        self._left = {name: value for name, value in given.items() if value is not None}
        self._known: set[str] = set()
        self._where = where

    def peeked(self, names: Collection[str]) -> dict[str, Any]:
        """Return the fields of these names that are given, without taking them."""
        return {name: self._left[name] for name in names if name in self._left}

    def any(self, name: str) -> Any:
        """Take a field of any kind; None if it is not given."""
        self._known.add(name)
        return self._left.pop(name, None)

    def take(self, name: str, kind: type[T]) -> T | None:
        """Take a field of this kind; None if it is not given.

        Raises:
            Refused: it is of another kind.
        """
        value = self.any(name)
        if value is not None and type(value) is not kind:
            raise invalid(self._where + name, f"{self._where}{name} must be {NAMES[kind]}, got {preview(value)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Take a field that is true or false."""
        value = self.take(name, bool)
        return default if value is None else value

    def within(self, name: str) -> "Fields | None":
        """Take a field that is an object, as fields of its own."""
        given = self.take(name, dict)
        return None if given is None else Fields(given, f"{self._where}{name}.")

    def items(self, name: str, kind: type[T]) -> list[T] | None:
        """Take a field that is a list, each item of which is of this kind.

        Raises:
            Refused: it is something else, or is empty.
        """
        value = self.take(name, list)
        if value is None:
            return None
        if not value or any(type(each) is not kind for each in value):
            what = (
                f"{self._where}{name} must be a list, not empty, of which each is {NAMES[kind]}, got {preview(value)}"
            )
            raise invalid(self._where + name, what)
        return value

    def needed(self, name: str) -> NoReturn:
        """Refuse the body because it lacks a field."""
        raise invalid(self._where + name, f"{self._where}{name} is missing")

    def refuse(self, name: str, why: str) -> NoReturn:
        """Refuse the body because of a field."""
        raise invalid(self._where + name, f"{self._where}{name} {why}")

    def finish(self, neutral: Mapping[str, Sequence[Any]], ignored: Collection[str] = IGNORED) -> None:
        """Check that all fields were taken, or change nothing.

        Args:
            neutral: values of further fields that are as if they were not given.
            ignored: the names of further fields that may have any value.

        Raises:
            Refused: there is another field.
        """
        for name, value in self._left.items():
            if name in ignored or value in neutral.get(name, ()):
                continue
            if name in neutral:
                only = f"this server has it only as {json.dumps(neutral[name][0])}"
                self.refuse(name, f"cannot be served: {only}, and it might change the answer")
            meant = likely(name, sorted(self._known | neutral.keys()))
            hint = f"; {meant}" if meant else ""
            self.refuse(name, f"cannot be served: it is unknown, and it might change the answer{hint}")


def parsed(body: bytes) -> Fields:
    """Return the fields of a body.

    Raises:
        Refused: it is no JSON object.
    """
    try:
        value = json.loads(body, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Refused(400, f"the body is not JSON: {error.msg} at {where}") from None
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON, as UTF-8 and with numbers that are finite") from None
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    return Fields(value)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
