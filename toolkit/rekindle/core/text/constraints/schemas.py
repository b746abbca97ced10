"""Changes of JSON schemas for llguidance, which refuses some keywords without effect."""

from collections.abc import Callable, Mapping
from typing import Any, Final

FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""The enforced values of `format`. Any other value is an annotation (JSON Schema, Validation 7.2.1)."""
DRAFTS: Final = ("http://json-schema.org/", "https://json-schema.org/")
"""Starts of the known values of `$schema`."""
_VALUES: Final = frozenset({"const", "enum", "default", "examples", "example"})
"""Keywords with data in place of schemas."""
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords with schemas by name."""
_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    "array": frozenset({"uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"}),
    "object": frozenset(
        {"propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"}
    ),
}
"""Constraints on arrays and on objects alone, unknown to llguidance."""
UNENFORCED: Final = frozenset({"not", "if", "then", "else", "$dynamicRef", "$recursiveRef"}).union(*_OF_KIND.values())
"""Constraints unknown to llguidance."""
_IDLE: Final[Mapping[str, tuple[Any, ...]]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "propertyNames": (True, {}),
    "not": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
"""Values of constraints without effect."""
Change = Callable[[dict[str, Any]], dict[str, Any]]


def without_notes(schema: Any) -> Any:
    """Return a schema without the keywords that llguidance refuses in spite of their lack of effect."""
    return _changed(schema, _noted)


def relaxed(schema: Any, is_pattern: Callable[[str], bool]) -> Any:
    """Return a schema of keywords known to llguidance. It allows all values of the given schema, and others.

    Args:
        schema: the schema.
        is_pattern: returns True for a `pattern` in the syntax of llguidance.
    """

    def relax(part: dict[str, Any]) -> dict[str, Any]:
        result = {name: value for name, value in _noted(part).items() if name not in UNENFORCED}
        result.pop("minProperties", None)
        if isinstance(options := result.pop("oneOf", None), list):
            result.setdefault("anyOf", options)
        pattern, reference = result.get("pattern"), result.get("$ref")
        if pattern is not None and not (isinstance(pattern, str) and is_pattern(pattern)):
            del result["pattern"]
        if reference is not None and not (isinstance(reference, str) and reference.startswith("#")):
            del result["$ref"]
        return result

    return _changed(schema, relax)


def moved(schema: Any, place: str) -> Any:
    """Return a schema with references for another place in a larger schema.

    Args:
        schema: the schema.
        place: the place, as a reference such as "#/anyOf/0".
    """

    def move(part: dict[str, Any]) -> dict[str, Any]:
        match part.get("$ref"):
            case str(reference) if reference == "#" or reference.startswith("#/"):
                return {**part, "$ref": f"{place}{reference[1:]}"}
        return part

    return _changed(schema, move)


def _changed(schema: Any, change: Change) -> Any:
    """Return a schema with a change of each part. The schema has at most `DEEPEST_SCHEMA` levels."""
    match schema:
        case Mapping():
            return change({name: _value(name, value, change) for name, value in schema.items()})
        case list():
            return [_changed(each, change) for each in schema]
    return schema


def _value(name: str, value: Any, change: Change) -> Any:
    if name in _VALUES:
        return value
    if name in _MAPS and isinstance(value, Mapping):
        return {key: _changed(each, change) for key, each in value.items()}
    return _changed(value, change)


def _noted(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema without keywords without effect."""
    return {name: value for name, value in part.items() if not _is_idle(name, value, part)}


def _is_idle(name: str, value: Any, part: Mapping[str, Any]) -> bool:
    """Return True for a keyword without effect on the values of a part of a schema."""
    match name:
        case "format":
            return not isinstance(value, str) or value not in FORMATS
        case "$schema":
            return not isinstance(value, str) or not value.startswith(DRAFTS)
        case "$dynamicAnchor" | "$recursiveAnchor" | "$vocabulary":
            return True
        case "then" | "else":
            return "if" not in part
        case "if":
            return not {"then", "else"} & part.keys()
        case "minContains" | "maxContains":
            return "contains" not in part
    if name in _IDLE and any(type(value) is type(each) and value == each for each in _IDLE[name]):
        return True
    kind = part.get("type")
    of_other_kinds = frozenset[str]().union(*(names for other, names in _OF_KIND.items() if other != kind))
    return isinstance(kind, str) and name in of_other_kinds
