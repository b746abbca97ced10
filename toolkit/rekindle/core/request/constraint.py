"""Forms that an output must have: the JSON of a schema, a match of a regex, one of some texts, or a grammar's."""

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from rekindle.core.errors import InvalidRequest
from rekindle.core.request import checks

LONGEST_CONSTRAINT = 2**20
"""The most characters of a constraint."""
MOST_CHOICES = 4096

Kind = Literal["json_schema", "regex", "choice", "grammar"]
SchemaLike: TypeAlias = Mapping[str, Any] | str | type
"""A JSON schema, its text, or a type that pydantic knows the schema of."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A form that an output must have, under the name of the keyword that says so.

    Attributes:
        kind: the keyword.
        text: the schema as JSON, the regular expression, the choices as a JSON list, or the grammar.
        adapter: pydantic's `TypeAdapter` of the type that the value is to be of; None for none.
    """

    kind: Kind
    text: str
    adapter: Any = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"{self.text!r:.80}"

    @property
    def label(self) -> str:
        """The constraint in words."""
        words = {"json_schema": "the JSON schema", "regex": "the regular expression", "choice": "the choice"}
        return words.get(self.kind, "the grammar")

    def value(self, text: str) -> Any:
        """Return what a whole output means: the JSON value, an object of the given type, or the text itself.

        Raises:
            ValueError: the text is no such value.
        """
        if self.kind != "json_schema":
            return text
        return json.loads(text, parse_float=_finite) if self.adapter is None else self.adapter.validate_json(text)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large for a float")
    return number


def json_schema(name: str, value: Any) -> Constraint:
    """Return the constraint to the JSON of a schema: a mapping, its text, or a type.

    Raises:
        InvalidRequest: it is none of these; or a type, and pydantic is not installed or knows no schema of it.
    """
    adapter = None
    if isinstance(value, str):
        value = _parsed(name, checks.text(name, value, LONGEST_CONSTRAINT))
    elif not isinstance(value, Mapping):
        adapter = _adapter(name, value)
        value = _schema_of(name, value, adapter)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} must be a JSON schema, and this is not JSON: {error}") from error
    return Constraint("json_schema", checks.text(name, text, LONGEST_CONSTRAINT), adapter)


def regex(name: str, value: Any) -> Constraint:
    """Return the constraint to what a regular expression matches as a whole."""
    return Constraint("regex", checks.text(name, value, LONGEST_CONSTRAINT))


def choice(name: str, value: Any) -> Constraint:
    """Return the constraint to one of some texts.

    Raises:
        InvalidRequest: it is no sequence of texts, or there are none, or too many, or one is empty.
    """
    texts = tuple(value) if checks.is_sequence(value) else ()
    if not texts or not all(isinstance(each, str) and each for each in texts):
        raise InvalidRequest(f"{name} must be a sequence of texts, none of them empty, got {checks.preview(value)}")
    if len(texts) > MOST_CHOICES:
        raise InvalidRequest(f"{name} may be at most {MOST_CHOICES} texts, got {len(texts)}")
    known = [checks.text(f"each of {name}", each, LONGEST_CONSTRAINT) for each in dict.fromkeys(texts)]
    return Constraint("choice", json.dumps(known, ensure_ascii=False))


def grammar(name: str, value: Any) -> Constraint:
    """Return the constraint to what a grammar in Lark's form derives."""
    return Constraint("grammar", checks.text(name, value, LONGEST_CONSTRAINT))


def regex_of(choices: Sequence[str]) -> str:
    """Return a regular expression that matches exactly these texts."""
    return "|".join(map(re.escape, choices))


def _parsed(name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{name} must be a JSON schema, and this text is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be a JSON schema, which is an object, got {checks.preview(text)}")
    return value


def _adapter(name: str, value: Any) -> Any:
    """Return pydantic's `TypeAdapter` of a type."""
    if isinstance(value, bool | int | float | Sequence) or value is None:
        raise InvalidRequest(
            f"{name} must be a JSON schema as a dict, or a type such as a pydantic model or a dataclass, "
            f"got {checks.preview(value)}"
        )
    if dataclasses.is_dataclass(type(value)) or hasattr(type(value), "model_json_schema"):
        raise InvalidRequest(
            f"{name} must be a type, and got an object of one, {checks.preview(value)}: give {type(value).__name__}"
        )
    if inspect.isroutine(value):  # pydantic would take its arguments for the value, and call it
        raise InvalidRequest(f"{name} must be a JSON schema or a type, and got a function, {checks.preview(value)}")
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise InvalidRequest(
            f"{name} got a type, {checks.preview(value)}; pydantic, which makes its schema, is not installed: "
            "pip install pydantic, or give the JSON schema as a dict"
        ) from error
    try:
        return TypeAdapter(value)
    except Exception as error:
        raise InvalidRequest(
            f"{name} must be a JSON schema as a dict, or a type that pydantic knows, got {checks.preview(value)}: "
            f"{_first_line(error)}"
        ) from error


def _schema_of(name: str, value: Any, adapter: Any) -> Any:
    try:
        return _closed(adapter.json_schema())
    except Exception as error:
        raise InvalidRequest(
            f"{name} was given {checks.preview(value)}, but pydantic has no schema: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    """Return what an error of pydantic's says, without the lines about pydantic's own hooks and pages."""
    return str(error).partition("\n")[0]


def _closed(schema: Any) -> Any:
    """Return a schema of a type whose objects have no properties but their own, if it does not say that they may."""
    match schema:
        case {"type": "object", "properties": _}:
            return {"additionalProperties": False} | {name: _closed(each) for name, each in schema.items()}
        case dict():
            return {name: _closed(each) for name, each in schema.items()}
        case list():
            return [_closed(each) for each in schema]
    return schema
