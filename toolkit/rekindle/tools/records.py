"""Classes whose values are objects in JSON: typed dicts, dataclasses, and models of pydantic where it is installed."""

import dataclasses
import typing
from collections.abc import Callable, Iterator
from typing import Any


def is_record(kind: type) -> bool:
    """Tell whether values of a class have named fields, each with an annotation."""
    return typing.is_typeddict(kind) or dataclasses.is_dataclass(kind)


def fields_of(record: type) -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, annotation, whether it is required) of each field that is given when a value is made."""
    hints = typing.get_type_hints(record, include_extras=True)
    if typing.is_typeddict(record):
        required: frozenset[str] = getattr(record, "__required_keys__", frozenset())
        for name, hint in hints.items():
            yield name, hint, name in required
        return
    for field in dataclasses.fields(record):
        if field.init:
            none = dataclasses.MISSING
            yield field.name, hints[field.name], field.default is none and field.default_factory is none


def is_pydantic(kind: type) -> bool:
    """Tell whether a class is a model of pydantic, which need not be installed for that."""
    return hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")


def pydantic_kind(model: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return the schema of a model, without references, and what makes a value of JSON.

    The errors of that are of pydantic, and are ValueErrors.
    """
    written: dict[str, Any] = model.model_json_schema()
    definitions = written.pop("$defs", {})
    return _without_references(written, definitions, ()), model.model_validate


def _without_references(schema: Any, definitions: dict[str, Any], within: tuple[str, ...]) -> Any:
    """Return a schema with each reference replaced by what it refers to; one within itself is any object."""
    if isinstance(schema, list):
        return [_without_references(each, definitions, within) for each in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name:
        if name in within:
            return {"type": "object"}
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _without_references({**definitions[name], **rest}, definitions, (*within, name))
    return {key: _without_references(value, definitions, within) for key, value in schema.items()}
