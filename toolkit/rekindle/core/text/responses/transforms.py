"""The shape that the parts of an answer get, written as a value with placeholders such as "{content.name}"."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rekindle.core.text.responses.contents import Malformed

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def transformed(shape: Any, known: Mapping[str, Any]) -> Any:
    """Return a shape with the value of each placeholder in its place.

    Args:
        shape: of dicts, lists and plain values. A text is a placeholder as a whole, or no placeholder.
        known: values by name; a dot in a placeholder looks into one of them.

    Raises:
        Malformed: there is no such value.
    """
    match shape:
        case Mapping():
            return {name: transformed(each, known) for name, each in shape.items()}
        case list():
            return [transformed(each, known) for each in shape]
        case str() if place := _PLACEHOLDER.fullmatch(shape):
            return _looked_up(place[1], known)
    return shape


def mixed(shape: Any) -> Iterator[str]:
    """Yield the texts of a shape in which a placeholder stands beside other text, for which nothing can be put."""
    match shape:
        case Mapping():
            for each in shape.values():
                yield from mixed(each)
        case list():
            for each in shape:
                yield from mixed(each)
        case str() if _PLACEHOLDER.search(shape) and not _PLACEHOLDER.fullmatch(shape):
            yield shape


def _looked_up(path: str, known: Mapping[str, Any]) -> Any:
    value: Any = known
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            has = (
                f"has {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, Mapping) else f"is {value!r:.80}"
            )
            raise Malformed(f"expected {path!r}, and there is no {name!r} in what {has}")
        value = value[name]
    return value
