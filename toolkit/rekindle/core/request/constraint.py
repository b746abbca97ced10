"""Constraints on an output: a JSON schema, a regular expression, a choice of texts, or a grammar; allowed tokens."""

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
"""Most characters of a constraint."""
MOST_CHOICES = 4096

Kind = Literal["json_schema", "regex", "choice", "grammar"]
SchemaLike: TypeAlias = Mapping[str, Any] | str | type
"""A JSON schema, its text, or a type with a schema in pydantic."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on an output.

    Attributes:
        kind: keyword of the constraint.
        text: the schema as JSON, the regular expression, the choices as a JSON list, or the grammar.
        adapter: pydantic's `TypeAdapter` for the type of the value, or None.
        source: the parameter that the constraint was made from; empty for the one with the name of its kind.
        answer: for a grammar of tool calls or an answer, the constraint on the answer; None for another constraint.
    """

    kind: Kind
    text: str
    adapter: Any = field(default=None, compare=False, repr=False)
    source: str = ""
    answer: "Constraint | None" = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return f"{self.text!r:.80}"

    @property
    def parameter(self) -> str:
        """Name of the parameter with the constraint."""
        return self.source or self.kind

    @property
    def label(self) -> str:
        """Name of the constraint for messages."""
        words = {"json_schema": "the JSON schema", "regex": "the regular expression", "choice": "the choice"}
        return words.get(self.kind, "the grammar")

    def value(self, text: str) -> Any:
        """Parse a whole output: return its JSON value, an object of the adapter's type, or the text itself.

        Raises:
            ValueError: the text is no valid value.
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
    """Return the constraint to a JSON schema, from a mapping, its text, or a type.

    Raises:
        InvalidRequest: the value is no JSON schema; or it is a type, and pydantic is missing or has no schema for it.
    """
    adapter = None
    if isinstance(value, str):
        value = _parsed(name, checks.text(name, value, LONGEST_CONSTRAINT))
    elif not isinstance(value, Mapping):
        adapter = _adapter(name, value)
        value = _schema_of(name, value, adapter)
    _check_values(name, value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} must be a JSON schema, and this is not JSON: {error}") from error
    return Constraint("json_schema", checks.text(name, text, LONGEST_CONSTRAINT), adapter)


def _check_values(name: str, schema: Any) -> None:
    """Refuse a schema of so many values that its text is too long: all threads stand still while one is written."""
    rest, count = [schema], 0
    while rest and count <= LONGEST_CONSTRAINT // 2:
        part = rest.pop()
        if isinstance(part, Mapping | list):
            count += len(part)
            rest.extend(part.values() if isinstance(part, Mapping) else part)
    if rest:
        raise InvalidRequest(f"{name} must have at most {LONGEST_CONSTRAINT // 2} values, and it has more")


def regex(name: str, value: Any) -> Constraint:
    """Return the constraint to whole matches of a regular expression."""
    return Constraint("regex", checks.text(name, value, LONGEST_CONSTRAINT))


def choice(name: str, value: Any) -> Constraint:
    """Return the constraint to one of several texts.

    Raises:
        InvalidRequest: the value is no sequence of texts, is empty, has an empty text, or has too many texts.
    """
    texts = tuple(value) if checks.is_sequence(value) else ()
    if not texts or not all(isinstance(each, str) and each for each in texts):
        raise InvalidRequest(f"{name} must be a sequence of texts, none of them empty, got {checks.preview(value)}")
    if len(texts) > MOST_CHOICES:
        raise InvalidRequest(f"{name} may be at most {MOST_CHOICES} texts, got {len(texts)}")
    choices = [checks.text(f"each of {name}", each, LONGEST_CONSTRAINT) for each in dict.fromkeys(texts)]
    return Constraint("choice", json.dumps(choices, ensure_ascii=False))


def grammar(name: str, value: Any) -> Constraint:
    """Return the constraint to a grammar in llguidance's variant of Lark."""
    return (
        value if isinstance(value, Constraint) else Constraint("grammar", checks.text(name, value, LONGEST_CONSTRAINT))
    )


def calls(grammar: str, answer: Constraint | None = None) -> Constraint:
    """Return the constraint to the grammar of calls of tools.

    Args:
        grammar: the grammar.
        answer: the constraint on an answer without calls, or None if an answer must have calls.

    Raises:
        InvalidRequest: the grammar is too long.
    """
    text = checks.text("the grammar of tools", grammar, LONGEST_CONSTRAINT)
    return Constraint("grammar", text, source="tools", answer=answer)


def regex_of(choices: Sequence[str]) -> str:
    """Return a regular expression for exactly these texts."""
    return "|".join(map(re.escape, choices))


def _parsed(name: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
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
    """Return the first line of pydantic's message; the others are about pydantic's hooks and pages."""
    return str(error).partition("\n")[0]


def _closed(schema: Any) -> Any:
    """Return the schema of a type, with additional properties forbidden unless it mentions them."""
    match schema:
        case {"type": "object", "properties": _}:
            return {"additionalProperties": False} | {name: _closed(each) for name, each in schema.items()}
        case dict():
            return {name: _closed(each) for name, each in schema.items()}
        case list():
            return [_closed(each) for each in schema]
    return schema


@dataclass(frozen=True, slots=True)
class Allowed:
    """Tokens allowed next in the output of a constrained request.

    Attributes:
        forced: next tokens without an alternative; they count as part of the output from now on.
        bits: mask of the tokens allowed after `forced`, (vocabulary / 32,) int32, the first token in the lowest bit;
            None if complete.
        complete: True if no token may follow.
        draft: a guess of the tokens after `forced`, allowed one after the other.
        sure: the number of first tokens of the draft without an alternative.
        draft_bits: for each token of the draft, the mask of the tokens allowed after it.
    """

    forced: tuple[int, ...] = ()
    bits: Any = field(default=None, compare=False, repr=False)
    complete: bool = False
    draft: tuple[int, ...] = ()
    sure: int = 0
    draft_bits: Any = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constrained:
    """The constraint of one request, compiled.

    Attributes:
        grammar: compiled constraint; a factory of matchers.
        first: tokens allowed at the beginning of the output.
    """

    grammar: Any = field(repr=False)
    first: Allowed
