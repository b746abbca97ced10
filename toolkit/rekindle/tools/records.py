"""Record classes: typed dicts, dataclasses and pydantic models, with a JSON object for each instance."""

import dataclasses
import typing
from collections.abc import Callable, Iterator
from typing import Any

from rekindle.tools.references import without_references


def is_record(kind: type) -> bool:
    """Return True if a class is a typed dict or a dataclass."""
    return typing.is_typeddict(kind) or dataclasses.is_dataclass(kind)


def fields_of(record: type) -> Iterator[tuple[str, Any, bool]]:
    """Yield (name, annotation, is required) for each field of a record's constructor."""
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
    """Return True if a class is a pydantic model, without importing pydantic."""
    return hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")


def pydantic_kind(model: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return (the schema of a pydantic model without references, the parser of JSON values).

    The parser raises pydantic's ValidationError, a subclass of ValueError.
    """
    return without_references(model.model_json_schema()), model.model_validate
