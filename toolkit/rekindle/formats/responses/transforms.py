"""Transforms of parsed values: shapes with placeholders like "{content.name}"."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rekindle.formats.responses.contents import Malformed

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def transform_value(shape: Any, context: Mapping[str, Any]) -> Any:
    """Return a shape with its placeholders replaced by values.

    Args:
        shape: a value of dicts, lists and plain values. A text is one placeholder, or contains none.
        context: values by name. A dot in a placeholder accesses a key of a value.

    Raises:
        Malformed: a value does not exist.
    """
    match shape:
        case Mapping():
            return {name: transform_value(each, context) for name, each in shape.items()}
        case list():
            return [transform_value(each, context) for each in shape]
        case str() if place := _PLACEHOLDER.fullmatch(shape):
            return _look_up(place[1], context)
    return shape


def mixed_texts(shape: Any) -> Iterator[str]:
    """Yield the texts of a shape with an unsupported mix of a placeholder and other text."""
    match shape:
        case Mapping():
            for each in shape.values():
                yield from mixed_texts(each)
        case list():
            for each in shape:
                yield from mixed_texts(each)
        case str() if _PLACEHOLDER.search(shape) and not _PLACEHOLDER.fullmatch(shape):
            yield shape


def _look_up(path: str, context: Mapping[str, Any]) -> Any:
    value: Any = context
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            description = (
                f"has {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, Mapping) else f"is {value!r:.80}"
            )
            raise Malformed(f"expected {path!r}, found no {name!r}: the value {description}")
        value = value[name]
    return value
