"""The forms that a body holds its output to, in OpenAI's words and in vLLM's."""

from collections.abc import Iterator
from typing import Any

from rekindle.server.reading.fields import Fields

Found = tuple[str, str, Any]
"""The field that says so, the keyword of the session, and its value."""
GUIDED = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""The keywords of a session by the names that vLLM has for them."""
ANY_OBJECT = {"type": "object"}


def constraint(body: Fields) -> Found | None:
    """Return what the output is held to; None for nothing.

    Raises:
        Refused: two fields say so, or one says it in a form that is not known.
    """
    found = [*_response_format(body), *_guided(body), *_structured(body)]
    if len(found) > 1:
        body.refuse(found[1][0], f"and {found[0][0]} each say what the output has to be; give one of them")
    return found[0] if found else None


def _response_format(body: Fields) -> Iterator[Found]:
    said = body.within("response_format")
    if said is None:
        return
    match said.take("type", str):
        case "text":
            pass
        case "json_object":
            yield "response_format", "json_schema", ANY_OBJECT
        case "json_schema":
            yield "response_format", "json_schema", schema_in(said, "json_schema")
        case None:
            said.needed("type")
        case kind:
            said.refuse("type", f"must be text, json_object or json_schema, got {kind!r:.80}")
    said.finish({})


def schema_in(said: Fields, name: str) -> dict[str, Any]:
    """Return the schema in a field that has it beside its name."""
    given = said.within(name)
    if given is None:
        said.needed(name)
    schema = given.take("schema", dict)
    if schema is None:
        given.needed("schema")
    given.finish({}, ("name", "description", "strict"))
    return schema


def _guided(body: Fields) -> Iterator[Found]:
    for name, keyword in GUIDED.items():
        value = body.any(f"guided_{name}")
        if value is not None:
            yield f"guided_{name}", keyword, value


def _structured(body: Fields) -> Iterator[Found]:
    said = body.within("structured_outputs")
    if said is None:
        return
    for name, keyword in GUIDED.items():
        value = said.any(name)
        if value is not None:
            yield "structured_outputs", keyword, value
    if said.flag("json_object"):
        yield "structured_outputs", "json_schema", ANY_OBJECT
    said.finish({})
