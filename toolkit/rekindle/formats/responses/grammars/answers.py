"""Terms of answers that are either tool calls or values of a constraint."""

import json
from collections.abc import Mapping
from typing import Any

from rekindle.core.request.constraint import Constraint, regex_of
from rekindle.core.text.constraints.schemas import moved, without_notes
from rekindle.formats.responses.grammars.arguments import schema_of_arguments
from rekindle.formats.responses.grammars.terms import json_of, regex_literal


def term_of(answer: Constraint) -> str:
    """Return the term of a constraint other than a grammar."""
    match answer.kind:
        case "json_schema":
            return json_of(without_notes(json.loads(answer.text)))
        case "choice":
            return regex_literal(regex_of(json.loads(answer.text)))
        case _:
            return regex_literal(answer.text)


def call_or_value(tools: Mapping[str, Mapping[str, Any]], answer: str) -> str:
    """Return the term of one call in JSON without delimiters, or of a value of a schema.

    As alternatives of a grammar, the beginnings of the two could not be told apart.

    Args:
        tools: the schemas of the arguments by the names of the tools.
        answer: the schema of the value, as JSON.
    """
    parts = [moved(without_notes(json.loads(answer)), "#/anyOf/0")]
    for place, (name, schema) in enumerate(tools.items(), 1):
        arguments = moved(schema_of_arguments(schema), f"#/anyOf/{place}/properties/parameters")
        call = {"type": "object", "properties": {"name": {"const": name}, "parameters": arguments}}
        parts.append({**call, "required": ["name", "parameters"], "additionalProperties": False})
    return json_of({"anyOf": parts})
