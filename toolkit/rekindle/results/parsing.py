"""Parsing of constrained outputs."""

from typing import Any

from rekindle.core.request.constraint import Constraint
from rekindle.formats.response import Response


def parse(constraint: Constraint, text: str, end: str, stopped_by: str | int | None) -> tuple[Any, str | None]:
    """Parse a finished output; return (value, None), or (None, the reason for the missing value).

    Args:
        text: the whole output.
        end: the finish reason.
        stopped_by: the stop string, or the id of the end token.
    """
    if end == "length":
        return None, f"the output was cut before {constraint.label} was fulfilled; raise max_tokens"
    if end != "stop":
        return None, f"the output was {end} before {constraint.label} was fulfilled"
    if isinstance(stopped_by, str):
        return None, f"the stop string {stopped_by!r} ended the output before {constraint.label} was fulfilled"
    try:
        return constraint.value(text), None
    except ValueError as error:
        return None, f"{type(error).__name__}: {error}"


def parse_response(
    constraint: Constraint, response: Response, end: str, stopped_by: str | int | None
) -> tuple[Any, str | None]:
    """Parse the content of a finished answer that may also call tools; see `parse`."""
    if response.tool_calls:
        return None, "the answer calls tools"
    return parse(constraint, response.content, end, stopped_by)
