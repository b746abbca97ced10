"""Tool calls in the values of a message, which models and templates write in several shapes."""

import json
import string
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from rekindle.core.text.response import ToolCall

_LETTERS = string.ascii_letters + string.digits


def calls_of(value: Any, raw: str, salt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Iterator[ToolCall]:
    """Yield the calls of a part of an answer: one, or a list of them.

    Args:
        value: each with a name and arguments, or with both in a "function"; arguments may be JSON as text.
        raw: the part as it was written.
        salt: what makes the ids of equal calls differ.
        tools: the JSON schemas of the tools, for arguments that are written as text whatever they mean.
    """
    for place, each in enumerate(value if isinstance(value, list) else [value]):
        function = each.get("function", each) if isinstance(each, Mapping) else None
        function = function.get("function", function) if isinstance(function, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        identity = call_id(f"{salt} {place} {raw}")
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            yield ToolCall("", {}, raw, identity, f"expected a call with a name, got {each!r:.200}")
            continue
        arguments = _arguments(function.get("arguments", function.get("parameters")))
        if arguments is None:
            yield ToolCall(
                name, {}, raw, identity, f"expected arguments by name, got {function.get('arguments')!r:.200}"
            )
        else:
            yield ToolCall(name, _meant(arguments, _parameters(name, tools)), raw, identity)


def call_id(text: str) -> str:
    """Return nine letters and digits, which is the form that Mistral's chat templates insist on."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=9).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


def _parameters(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the schema of a tool's parameters; nothing for a tool that is not known."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return {}


def _meant(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which a text is the JSON that it is, where the schema allows that and no text."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    return {
        name: _of_text(value, properties.get(name), schema) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


def _of_text(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    if text.strip() in ("null", "None") and allows("null", schema, root):
        return None
    if allows("string", schema, root):
        return text
    try:
        return json.loads(_PYTHON.get(text.strip(), text))
    except ValueError:
        return _of_python(text)


def _of_python(text: str) -> Any:
    """Return the value of a Python literal, if JSON can have it; else the text itself."""
    try:
        value = literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return value


def allows(kind: str, schema: Any, root: Mapping[str, Any]) -> bool:
    """Tell whether a schema allows a kind of JSON, as far as it says; a text where it does not say.

    Args:
        kind: such as "string".
        root: the schema that it is a part of, for its references.
    """
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping):
            return kind == "string"
        if "$ref" not in schema:
            break
        schema = _referred(schema["$ref"], root)
    if "const" in schema or "enum" in schema:
        return any(isinstance(each, _PYTHONS[kind]) for each in schema.get("enum", [schema.get("const")]))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return any(allows(kind, each, root) for each in schema[several])
    if "allOf" in schema:
        return all(allows(kind, each, root) for each in schema["allOf"])
    kinds = schema.get("type", "string")
    return kind in ([kinds] if isinstance(kinds, str) else kinds)


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return the part of a schema that a reference such as "#/$defs/Place" is to; None if there is none."""
    part: Any = root
    for name in str(reference).removeprefix("#").split("/")[1:]:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


_MOST_REFERENCES: Final = 16
_PYTHONS: Final[Mapping[str, type]] = {"string": str, "null": type(None)}
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}
"""What models write that were trained on code."""


def _arguments(value: Any) -> dict[str, Any] | None:
    """Return arguments by name; None if the value has none. A call without any may leave them out."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else None
