"""Tool calls in the values of a message, which models and templates write in several shapes."""

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from rekindle.results.response import ToolCall

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
            yield ToolCall(name, _meant(arguments, _properties(name, tools)), raw, identity)


def call_id(text: str) -> str:
    """Return nine letters and digits, which is the form that Mistral's chat templates insist on."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=9).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


def _properties(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters; nothing for a tool that is not known."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return properties if isinstance(properties, Mapping) else {}
    return {}


def _meant(arguments: dict[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which a text whose schema allows no text is the JSON that it is."""
    return {
        name: _of_text(value) if isinstance(value, str) and not allows_text(properties.get(name)) else value
        for name, value in arguments.items()
    }


def allows_text(schema: Any) -> bool:
    """Tell whether a schema allows a text, as far as it says."""
    if not isinstance(schema, Mapping):
        return True
    if "enum" in schema:
        return any(isinstance(each, str) for each in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return any(allows_text(each) for each in schema[several])
    kinds = schema.get("type", "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


def _of_text(text: str) -> Any:
    try:
        return json.loads(_PYTHON.get(text.strip(), text))
    except ValueError:
        return text


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
