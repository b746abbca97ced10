"""Tool calls from parsed values, in the shapes used by models and chat templates."""

import json
import string
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from rekindle.formats.response import ToolCall

_LETTERS = string.ascii_letters + string.digits


def calls_of(
    value: Any, raw: str, salt: str, tools: Sequence[Mapping[str, Any]] = (), before: int = 0
) -> Iterator[ToolCall]:
    """Yield the calls in a parsed value: a single call, or a list of calls.

    Args:
        value: calls with a name and arguments, possibly nested in "function"; arguments may be serialized JSON.
        raw: the text of the value as the model wrote it.
        salt: a text for ids unlike those of other answers.
        tools: JSON schemas of the tools, to convert arguments written as untyped text.
        before: the number of calls before in the answer.
    """
    for place, each in enumerate(_each(value), before):
        function = each.get("function", each) if isinstance(each, Mapping) else None
        function = function.get("function", function) if isinstance(function, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        identity = call_id(salt, place)
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            yield ToolCall("", {}, raw, identity, f"expected a call with a name, got {each!r:.200}")
            continue
        arguments = _arguments(function.get("arguments", function.get("parameters")))
        if arguments is None:
            yield ToolCall(
                name, {}, raw, identity, f"expected arguments by name, got {function.get('arguments')!r:.200}"
            )
        else:
            yield ToolCall(name, _typed_arguments(arguments, parameters_of(name, tools) or {}), raw, identity)


def _each(value: Any) -> Iterator[Any]:
    """Yield the single calls in a value; there may be several where the format has one."""
    for each in value if isinstance(value, list) else [value]:
        functions = each.get("function") if isinstance(each, Mapping) else None
        yield from functions if isinstance(functions, list) else [each]


def call_id(salt: str, place: int) -> str:
    """Return the id of an answer's call: nine letters and digits, the format required by Mistral's chat templates."""
    digest = blake2b(f"{salt} {place}".encode(), digest_size=9).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


def parameters_of(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the parameter schema of a tool, or None for an unknown tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return None


def _typed_arguments(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert text arguments to JSON values, if the schema allows the value and does not allow a string."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    return {
        name: parse_text(value, properties.get(name), schema) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


def parse_text(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Return the value of an argument written as text, by its schema in that of all arguments."""
    if text.strip() in ("null", "None") and allows("null", schema, root):
        return None
    if allows("string", schema, root):
        return text
    try:
        return json.loads(_PYTHON_LITERALS.get(text.strip(), text))
    except (ValueError, RecursionError):
        return _parse_python(text)


def _parse_python(text: str) -> Any:
    """Return the value of a Python literal, if JSON can represent it, or else the text itself."""
    try:
        value = literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return value


def allows(kind: str, schema: Any, root: Mapping[str, Any]) -> bool:
    """Return True if a schema allows a JSON type. A schema without type information allows only strings.

    Args:
        kind: the JSON type: "string" or "null".
        root: the schema that contains this one, for resolving references.
    """
    visits: set[int] = set()  # parts of the schema, since many references may name one part, or a part within itself

    def allowed(part: Any) -> bool:
        if id(part) in visits or len(visits) > _MOST_PARTS or not isinstance(part, Mapping):
            return kind == "string" and not isinstance(part, Mapping)
        visits.add(id(part))
        if "$ref" in part:
            return allowed(resolve(part["$ref"], root))
        if "const" in part or "enum" in part:
            values = part.get("enum", [part.get("const")])
            return any(isinstance(each, _TYPES[kind]) for each in _items(values))
        for keyword in ("anyOf", "oneOf"):
            if keyword in part:
                return any(map(allowed, _items(part[keyword])))
        if "allOf" in part:
            return all(map(allowed, _items(part["allOf"])))
        kinds = part.get("type", "string")
        return kind in ([kinds] if isinstance(kinds, str) else _items(kinds))

    return allowed(schema)


def _items(value: Any) -> Sequence[Any]:
    """Return a list, or an empty one for a malformed part of a schema."""
    return value if isinstance(value, list | tuple) else ()


def resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the target of a schema reference such as "#/$defs/Place", or None if it does not exist."""
    part: Any = root
    for name in str(reference).removeprefix("#").split("/")[1:]:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


_MOST_PARTS: Final = 200
"""Most parts of a schema on the way to a type."""
_TYPES: Final[Mapping[str, type]] = {"string": str, "null": type(None)}
_PYTHON_LITERALS: Final = {"True": "true", "False": "false", "None": "null"}
"""Literals written by models trained on code, and their JSON equivalents."""


def _arguments(value: Any) -> dict[str, Any] | None:
    """Return arguments by name, or None for a malformed value. A call without arguments may omit them."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else None
