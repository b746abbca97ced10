"""What an annotation says of a value: the JSON schema that a model is told, and the value that its JSON becomes."""

import enum
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rekindle.core.request.checks import preview
from rekindle.tools import records


class Undescribed(TypeError):
    """An annotation that JSON has no form for."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of value.

    Attributes:
        schema: what its JSON looks like.
        read: makes the value of its JSON; raises ValueError if that is none.
    """

    schema: dict[str, Any]
    read: Callable[[Any], Any]


def kind_of(annotation: Any) -> ValueKind:
    """Return the kind of value that an annotation stands for.

    Raises:
        Undescribed: it stands for none that JSON has.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return ValueKind({}, lambda value: value)
    if origin is Annotated:
        return _described(kind_of(arguments[0]), arguments[1:])
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _choice(arguments, {each: each for each in arguments if type(each) in (str, int, bool, type(None))})
    if origin in (typing.Required, typing.NotRequired):
        return kind_of(arguments[0])
    if annotation in _PLAIN or annotation is None:
        return _PLAIN[annotation or type(None)]
    made = _collection(origin or annotation, arguments) or _named(annotation)
    if made is None:
        raise Undescribed(f"{preview(annotation)} has no form in JSON")
    return made


def told(expected: str, value: Any) -> ValueError:
    """Return the error for a value of another kind."""
    return ValueError(f"expected {expected}, got {preview(value)}")


def _exactly(name: str, *kinds: type) -> ValueKind:
    def read(value: Any) -> Any:
        if type(value) not in kinds:
            raise told(name, value)
        return value

    return ValueKind({"type": name}, read)


def _integer(value: Any) -> int:
    """Read an integer; some models write one as 3.0."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not int:
        raise told("an integer", value)
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise told("a number", value)
    return float(value)


_PLAIN: Mapping[Any, ValueKind] = {
    str: _exactly("string", str),
    bool: _exactly("boolean", bool),
    type(None): _exactly("null", type(None)),
    int: ValueKind({"type": "integer"}, _integer),
    float: ValueKind({"type": "number"}, _number),
}


def _described(kind: ValueKind, notes: Sequence[Any]) -> ValueKind:
    """Return a kind with the text that an annotation has beside it."""
    texts = [note for note in notes if isinstance(note, str)]
    return ValueKind({**kind.schema, "description": texts[0]}, kind.read) if texts else kind


def _union(alternatives: Sequence[Any]) -> ValueKind:
    kinds = [kind_of(each) for each in alternatives]

    def read(value: Any) -> Any:
        errors = []
        for kind in kinds:
            try:
                return kind.read(value)
            except ValueError as error:
                errors.append(str(error))
        raise ValueError("; or ".join(errors))

    return ValueKind({"anyOf": [kind.schema for kind in kinds]}, read)


def _choice(allowed: Collection[Any], values: Mapping[Any, Any]) -> ValueKind:
    """Return the kind of one of some values; `values` has what the JSON of each becomes."""
    if len(values) < len(allowed) or not values:
        raise Undescribed(f"one of {', '.join(map(repr, allowed))} has no form in JSON")
    types_of = {type(each) for each in values}
    schema: dict[str, Any] = {"enum": list(values)}
    if len(types_of) == 1 and (only := types_of.pop()) in _PLAIN:
        schema = {**_PLAIN[only].schema, **schema}

    def read(value: Any) -> Any:
        for written, meant in values.items():
            if type(written) is type(value) and written == value:
                return meant
        raise told(f"one of {', '.join(map(repr, values))}", value)

    return ValueKind(schema, read)


def _collection(origin: Any, arguments: Sequence[Any]) -> ValueKind | None:
    """Return the kind of a list, a tuple, a set or a mapping; None for anything else."""
    if not isinstance(origin, type) or records.is_record(origin):
        return None
    if issubclass(origin, tuple) and arguments and arguments[-1] is not ...:
        return _fixed(arguments)
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


def _list(item: ValueKind, made: Callable[[list[Any]], Any]) -> ValueKind:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise told("a list", value)
        return made([_at(place, item, each) for place, each in enumerate(value)])

    return ValueKind({"type": "array", "items": item.schema}, read)


def _fixed(arguments: Sequence[Any]) -> ValueKind:
    items = [kind_of(each) for each in arguments]

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise told(f"a list of {len(items)}", value)
        return tuple(_at(place, item, each) for place, (item, each) in enumerate(zip(items, value, strict=True)))

    schemas = [item.schema for item in items]
    return ValueKind({"type": "array", "prefixItems": schemas, "minItems": len(items), "maxItems": len(items)}, read)


def _mapping(arguments: Sequence[Any]) -> ValueKind:
    if arguments and arguments[0] is not str:
        raise Undescribed(f"keys of JSON are texts, not {preview(arguments[0])}")
    item = kind_of(arguments[1] if arguments else Any)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise told("an object", value)
        return {name: _at(name, item, each) for name, each in value.items()}

    return ValueKind({"type": "object", "additionalProperties": item.schema or True}, read)


def _named(annotation: Any) -> ValueKind | None:
    """Return the kind of an enumeration or of a record; None for any other class."""
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
        lambda value: annotation(**read_object(fields, value)),
    )


def object_schema(fields: Mapping[str, tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    """Return the schema of an object with these fields, each with whether it is required."""
    properties = {name: schema for name, (schema, _) in fields.items()}
    required = [name for name, (_, required) in fields.items() if required]
    return {"type": "object", "properties": properties, "required": required}


def read_object(fields: Mapping[str, tuple[ValueKind, bool]], value: Any) -> dict[str, Any]:
    """Return the fields of an object.

    Raises:
        ValueError: one is missing, unknown, or of another kind; the message names it.
    """
    if not isinstance(value, Mapping):
        raise told("an object", value)
    missing = [name for name, (_, required) in fields.items() if required and name not in value]
    unknown = [name for name in value if name not in fields]
    if missing or unknown:
        wrong = [f"no {name}" for name in missing] + [f"an unknown {name}" for name in unknown]
        raise ValueError(f"expected {', '.join(fields) or 'nothing'}, got {' and '.join(wrong)}")
    return {name: _at(name, fields[name][0], each) for name, each in value.items()}


def _at(place: str | int, kind: ValueKind, value: Any) -> Any:
    try:
        return kind.read(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
