"""Output constraints in bodies, with OpenAI's field names and with vLLM's."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from rekindle.core.request.checks import preview
from rekindle.server.common.fields import Fields

ConstraintEntry = tuple[str, str, Any]
"""The field of a constraint, the keyword of the session, and its value."""
GUIDED = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""The keyword of the session for each of vLLM's constraints."""
ANY_OBJECT = {"type": "object"}


def constraint(body: Fields) -> ConstraintEntry | None:
    """Return the constraint on the output, or None if there is none.

    Raises:
        ApiError: two fields constrain the output in different ways, or one has an unknown form.
    """
    entries = [*_response_format(body), *_guided(body), *_structured(body)]
    for field, keyword, value in entries[1:]:
        if (keyword, _parsed(keyword, value)) != (entries[0][1], _parsed(*entries[0][1:])):
            body.refuse(field, f"and {entries[0][0]} both constrain the output; give one of them")
    return entries[0] if entries else None


def _parsed(keyword: str, value: Any) -> Any:
    """Return a schema as an object, for comparison; another constraint as it is."""
    if keyword == "json_schema" and isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _response_format(body: Fields) -> Iterator[ConstraintEntry]:
    response_format = body.take_fields("response_format")
    if response_format is None:
        return
    match response_format.take("type", str):
        case "text":
            pass
        case "json_object":
            yield "response_format", "json_schema", response_format.take("schema", dict) or ANY_OBJECT
        case "json_schema" if response_format.peek(("schema",)):  # llama.cpp's form
            yield "response_format", "json_schema", response_format.take("schema", dict)
        case "json_schema":
            yield "response_format", "json_schema", read_schema(response_format, "json_schema")
        case None:
            response_format.refuse_missing("type")
        case kind:
            response_format.refuse("type", f"must be text, json_object or json_schema, got {preview(kind)}")
    response_format.finish({})


def read_schema(parent: Fields, name: str) -> dict[str, Any]:
    """Take the schema out of a field with a schema, its name and its description."""
    wrapper = parent.take_fields(name)
    if wrapper is None:
        parent.refuse_missing(name)
    schema = wrapper.require("schema", dict)
    wrapper.finish({}, ("name", "description", "strict"))
    return schema


def _guided(body: Fields) -> Iterator[ConstraintEntry]:
    for name, keyword in GUIDED.items():
        value = body.any(f"guided_{name}")
        if value is not None:
            yield f"guided_{name}", keyword, value


def _structured(body: Fields) -> Iterator[ConstraintEntry]:
    structured = body.take_fields("structured_outputs")
    if structured is None:
        return
    for name, keyword in GUIDED.items():
        value = structured.any(name)
        if value is not None:
            yield "structured_outputs", keyword, value
    if structured.flag("json_object"):
        yield "structured_outputs", "json_schema", ANY_OBJECT
    structured.finish({})
