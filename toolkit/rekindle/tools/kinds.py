"""Kinds of values by annotation: JSON schemas, and parsers of JSON values."""

import enum
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rekindle.core.request.checks import preview
from rekindle.tools import records


class UnsupportedAnnotation(TypeError):
    """Annotation without an equivalent in JSON."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """Kind of the values of an annotation: their JSON schema and parser.

    Attributes:
        schema: the JSON schema of the values.
        parse: converts a JSON value to the Python value; raises ValueError for a mismatch.
    """

    schema: dict[str, Any]
    parse: Callable[[Any], Any]


def kind_of(annotation: Any) -> ValueKind:
    """Return the kind of an annotation's values.

    Raises:
        UnsupportedAnnotation: the annotation has no equivalent in JSON.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return ValueKind({}, lambda value: value)
    if origin is Annotated:
        return _with_description(kind_of(arguments[0]), arguments[1:])
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _choice(arguments, {each: each for each in arguments if type(each) in (str, int, bool, type(None))})
    if origin in (typing.Required, typing.NotRequired):
        return kind_of(arguments[0])
    if annotation in _PLAIN or annotation is None:
        return _PLAIN[annotation or type(None)]
    kind = _collection(origin or annotation, arguments) or _class_kind(annotation)
    if kind is None:
        raise UnsupportedAnnotation(f"{preview(annotation)} has no JSON equivalent")
    return kind


def mismatch(expected: str, value: Any) -> ValueError:
    """Return the error for a value of the wrong kind."""
    return ValueError(f"expected {expected}, got {preview(value)}")


def _exactly(name: str, *kinds: type) -> ValueKind:
    def parse(value: Any) -> Any:
        if type(value) not in kinds:
            raise mismatch(name, value)
        return value

    return ValueKind({"type": name}, parse)


def _integer(value: Any) -> int:
    """Parse an integer; some models write integers as 3.0."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not int:
        raise mismatch("an integer", value)
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise mismatch("a number", value)
    return float(value)


_PLAIN: Mapping[Any, ValueKind] = {
    str: _exactly("string", str),
    bool: _exactly("boolean", bool),
    type(None): _exactly("null", type(None)),
    int: ValueKind({"type": "integer"}, _integer),
    float: ValueKind({"type": "number"}, _number),
}


def _with_description(kind: ValueKind, notes: Sequence[Any]) -> ValueKind:
    """Return a kind with the description from `Annotated`, if there is one."""
    texts = [note for note in notes if isinstance(note, str)]
    return ValueKind({**kind.schema, "description": texts[0]}, kind.parse) if texts else kind


def _union(alternatives: Sequence[Any]) -> ValueKind:
    kinds = [kind_of(each) for each in alternatives]

    def parse(value: Any) -> Any:
        errors = []
        for kind in kinds:
            try:
                return kind.parse(value)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError("; or ".join(errors))

    return ValueKind({"anyOf": [kind.schema for kind in kinds]}, parse)


def _choice(allowed: Collection[Any], values: Mapping[Any, Any]) -> ValueKind:
    """Return the kind of an enumeration.

    Args:
        allowed: the values of the annotation, including any without a JSON value.
        values: the Python value for each JSON value.
    """
    if len(values) < len(allowed) or not values:
        raise UnsupportedAnnotation(f"one of {', '.join(map(repr, allowed))} has no JSON equivalent")
    types_of = {type(each) for each in values}
    schema: dict[str, Any] = {"enum": list(values)}
    if len(types_of) == 1 and (only := types_of.pop()) in _PLAIN:
        schema = {**_PLAIN[only].schema, **schema}

    def parse(value: Any) -> Any:
        for json_value, result in values.items():
            if type(json_value) is type(value) and json_value == value:
                return result
        raise mismatch(f"one of {', '.join(map(repr, values))}", value)

    return ValueKind(schema, parse)


def _collection(origin: Any, arguments: Sequence[Any]) -> ValueKind | None:
    """Return the kind of a list, tuple, set or mapping; None for other types."""
    if not isinstance(origin, type) or records.is_record(origin):
        return None
    if issubclass(origin, tuple) and arguments and arguments[-1] is not ...:
        return _tuple(arguments)
    if issubclass(origin, Mapping):
        return _mapping(arguments)
    if origin in _COLLECTIONS:
        return _list(kind_of(arguments[0]) if arguments else kind_of(Any), _COLLECTIONS[origin])
    return None


_COLLECTIONS: Mapping[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    Collection: list,
    typing.get_origin(typing.Iterable[int]): list,
}


def _list(item: ValueKind, collect: Callable[[list[Any]], Any]) -> ValueKind:
    def parse(value: Any) -> Any:
        if not isinstance(value, list):
            raise mismatch("a list", value)
        return collect([_at(place, item, each) for place, each in enumerate(value)])

    return ValueKind({"type": "array", "items": item.schema}, parse)


def _tuple(arguments: Sequence[Any]) -> ValueKind:
    items = [kind_of(each) for each in arguments]

    def parse(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise mismatch(f"a list of {len(items)}", value)
        return tuple(_at(place, item, each) for place, (item, each) in enumerate(zip(items, value, strict=True)))

    schemas = [item.schema for item in items]
    return ValueKind({"type": "array", "prefixItems": schemas, "minItems": len(items), "maxItems": len(items)}, parse)


def _mapping(arguments: Sequence[Any]) -> ValueKind:
    if arguments and arguments[0] is not str:
        raise UnsupportedAnnotation(f"JSON keys are strings, not {preview(arguments[0])}")
    item = kind_of(arguments[1] if arguments else Any)

    def parse(value: Any) -> Any:
        if not isinstance(value, dict):
            raise mismatch("an object", value)
        return {name: _at(name, item, each) for name, each in value.items()}

    return ValueKind({"type": "object", "additionalProperties": item.schema or True}, parse)


def _class_kind(annotation: Any) -> ValueKind | None:
    """Return the kind of an enumeration or a record; None for other classes."""
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, enum.Enum):
        return _choice([each.value for each in annotation], {each.value: each for each in annotation})
    if records.is_pydantic(annotation):
        return ValueKind(*records.pydantic_kind(annotation))
    if not records.is_record(annotation):
        return None
    fields = {name: (kind_of(kind), required) for name, kind, required in records.fields_of(annotation)}
    return ValueKind(
        object_schema({name: (kind.schema, required) for name, (kind, required) in fields.items()}),
        lambda value: annotation(**parse_object(fields, value)),
    )


def object_schema(fields: Mapping[str, tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    """Return the JSON schema of an object; `fields` maps names to (schema, is required)."""
    properties = {name: schema for name, (schema, _) in fields.items()}
    required = [name for name, (_, required) in fields.items() if required]
    return {"type": "object", "properties": properties, "required": required}


def parse_object(fields: Mapping[str, tuple[ValueKind, bool]], value: Any) -> dict[str, Any]:
    """Return the parsed fields of an object; `fields` maps names to (kind, is required).

    Raises:
        ValueError: a field is missing, unknown or of the wrong kind; the message names the field.
    """
    if not isinstance(value, Mapping):
        raise mismatch("an object", value)
    missing = [name for name, (_, required) in fields.items() if required and name not in value]
    unknown = [name for name in value if name not in fields]
    if missing or unknown:
        wrong = [f"no {name}" for name in missing] + [f"an unknown {name}" for name in unknown]
        raise ValueError(f"expected {', '.join(fields) or 'nothing'}, got {' and '.join(wrong)}")
    return {name: _at(name, fields[name][0], each) for name, each in value.items()}


def _at(place: str | int, kind: ValueKind, value: Any) -> Any:
    try:
        return kind.parse(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
