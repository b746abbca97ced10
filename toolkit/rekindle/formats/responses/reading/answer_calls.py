"""The tool calls of an answer: in pieces as they come, then whole."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.formats.response import CallPiece, Part, ToolCall
from rekindle.formats.responses.calls import call_id, calls_of
from rekindle.formats.responses.formats import Format
from rekindle.formats.responses.reading.call_pieces import CallKeys, CallPieces, remainder
from rekindle.formats.responses.region import FieldEnd

_UNMARKED: Final = re.compile(r"\s*(?:\{|<function=|\[\s*(?:\{|[A-Za-z_][\w.-]*\())")
"""Start of a call without a delimiter. It counts as a call only if its tool was offered."""


class AnswerCalls:
    """Reader of the fields with calls in an answer.

    Args:
        answer_format: the format of the answer.
        tools: JSON schemas of the available tools.
        salt: a text to make the ids of calls differ from those of other answers.

    Attributes:
        calls: the calls so far.
        first_field: the place of the first complete call's field among all fields of calls; None before.
    """

    def __init__(self, answer_format: Format, tools: Sequence[Mapping[str, Any]], salt: str):
        self._format, self._tools, self._salt = answer_format, tools, salt
        self._fields = 0
        self._pieces: CallPieces | None = None  # of the field in progress
        self.calls: list[ToolCall] = []
        self.first_field: int | None = None

    def start(self, name: str, captures: Mapping[str, str]) -> None:
        """Start a field; its calls come in pieces if their arguments are written as JSON."""
        assert self._format.template is not None, "there are fields"
        field = self._format.template.fields[name]
        keys = CallKeys.of(field.content, field.content_args, field.transform)
        self._pieces = None if keys is None else CallPieces(keys, captures.get("name"), self._tools)

    def pieces_of(self, text: str) -> tuple[CallPiece, ...]:
        """Return the pieces of calls in the next text of a field."""
        pieces = self._pieces.feed(text) if self._pieces else ()
        return tuple(CallPiece(self._id(place), *others) for place, *others in pieces)

    def end(self, event: FieldEnd) -> list[Part] | None:
        """End a field, and return its calls as parts; None for a text that begins as a call without a delimiter."""
        calls = self._calls_of(event)
        place, self._fields = self._fields, self._fields + 1
        reader, self._pieces = self._pieces, None
        has_begun = reader is not None and reader.has_begun
        if _UNMARKED.match(event.raw) and not has_begun and not all(map(self._offers, calls)):
            return None
        self.calls += calls
        if self.first_field is None and any(call.error is None for call in calls):
            self.first_field = place
        prefixes = [reader.text_of(number) if reader else None for number in range(len(calls))]
        return [Part("tool_call", "", *each) for each in zip(calls, map(_last_pieces, calls, prefixes), strict=True)]

    def _id(self, place: int) -> str:
        """Return the id of a call of the field in progress, by its place there."""
        return call_id(self._salt, len(self.calls) + place)

    def _offers(self, call: ToolCall) -> bool:
        """Return True if a call is well-formed and calls one of the available tools."""
        return call.error is None and any(tool.get("function", tool).get("name") == call.name for tool in self._tools)

    def _calls_of(self, end: FieldEnd) -> list[ToolCall]:
        if end.error is not None:
            return [ToolCall("", {}, end.raw, self._id(0), end.error)]
        return list(calls_of(end.value, end.raw, self._salt, self._tools, len(self.calls)))


def _last_pieces(call: ToolCall, prefix: str | None) -> tuple[CallPiece, ...]:
    """Return the last piece of a complete call, if there were others."""
    if prefix is None or call.error is not None:
        return ()
    return (CallPiece(call.id, call.name, remainder(call.arguments, prefix)),)
