"""The parts of an answer for all APIs with reasoning, content and tool calls: complete, and as they come."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rekindle.client.record import Record
from rekindle.core.request.checks import preview
from rekindle.core.request.tokens import Piece
from rekindle.formats.response import CallPiece, Part, PartKind, Reading, ToolCall
from rekindle.results.generation import Generation
from rekindle.server.common.call import Call
from rekindle.server.common.continuation import reading_of, without_continued
from rekindle.server.common.tools.custom import INPUT, CustomTool

NO_CUSTOM: Final[Mapping[str, CustomTool]] = {}


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer.

    Attributes:
        reasoning: its reasoning, or None.
        content: its text, with malformed tool calls.
        calls: the other tool calls.
    """

    reasoning: str | None
    content: str
    calls: Sequence[ToolCall]

    @classmethod
    def of(
        cls, generation: Generation, call: Call, *, one_call: bool, custom: Mapping[str, CustomTool] = NO_CUSTOM
    ) -> "Answer":
        """Return the answer of a generation, with at most one tool call if `one_call`; `custom` as in `AnswerParts`."""
        source = without_continued(generation, call)
        calls = [_checked(each, custom) for each in source.tool_calls]
        readable = [place for place, each in enumerate(calls) if each.error is None]
        if one_call and readable:
            calls = calls[: readable[0] + 1]
        rejected = (_rejected(*each, call) for each in zip(source.tool_calls, calls, strict=False))
        text = _content(source.content, call) + "".join(rejected)
        return cls(source.reasoning, text, [each for each in calls if each.error is None])


class AnswerParts:
    """Reader of an answer as it comes.

    Args:
        call: the call of the session.
        one_call: whether the answer has at most one tool call.
        custom: the custom tools by name.

    Attributes:
        calls: the number of complete tool calls so far.
    """

    def __init__(self, call: Call, *, one_call: bool, custom: Mapping[str, CustomTool] = NO_CUSTOM):
        self._call, self._one_call, self._custom = call, one_call, custom
        self._reading: Reading | None = None
        self._has_started, self._has_content = False, False
        self._open_ids: set[str] = set()  # of the calls with a piece so far
        self.calls = 0

    def push(self, piece: Piece, record: Record) -> list[Part]:
        """Return the parts of a piece: non-empty texts, and tool calls in pieces; the last piece has the call.

        A call in a format without pieces, or of a custom tool, is one piece.
        """
        self._start(record)
        if self._reading is None:
            return [Part("content", piece.text)] if piece.text else []
        return self._parts(self._reading.push(piece.text, piece.token_ids))

    def finish(self, record: Record) -> list[Part]:
        """Return the parts at the end of the answer."""
        self._start(record)
        return [] if self._reading is None else self._parts(self._reading.finish()[1])

    def _start(self, record: Record) -> None:
        if not self._has_started:
            self._has_started = True
            self._reading = reading_of(record, self._call)  # the prompt is tokenized by now

    def _parts(self, parts: Sequence[Part]) -> list[Part]:
        result: list[Part] = []
        for part in parts:
            if part.kind == "tool_call":
                result += [] if self._one_call and self.calls else self._call_parts(part)
            elif part.kind == "reasoning" or self._has_content or self._call.may_have(part.text):
                result.append(part)
                self._has_content |= part.kind == "content"
        return result

    def _call_parts(self, part: Part) -> list[Part]:
        """Return the part of a call, or the text of a malformed call without any piece so far."""
        call = None if part.call is None else _checked(part.call, self._custom)
        pieces = [piece for piece in part.pieces if piece.name not in self._custom]
        if call is not None and call.error is None and call.id not in self._open_ids:
            pieces = [CallPiece(call.id, call.name, call_text(call, self._custom))]
        if self._one_call and self._open_ids:
            pieces = [piece for piece in pieces if piece.id in self._open_ids]
        self._open_ids.update(piece.id for piece in pieces)
        if call is not None and part.call is not None and call.id not in self._open_ids:
            text = _rejected(part.call, call, self._call)
            return [Part("content", text)] if text else []
        complete = call if call is not None and call.error is None else None
        self.calls += complete is not None
        return [Part("tool_call", "", complete, tuple(pieces))] if pieces or complete else []


def events_of(
    parts: Sequence[Part],
    grow: Callable[[PartKind, str], list[bytes]],
    grow_call: Callable[[CallPiece], list[bytes]],
    close: Callable[[], list[bytes]],
) -> list[bytes]:
    """Return the events of parts of an answer, in an API whose streams open and close blocks of one kind.

    Args:
        parts: the next parts of the answer.
        grow: returns the events of more text of a kind.
        grow_call: returns the events of a piece of a call.
        close: returns the events of the end of a block.
    """
    events: list[bytes] = []
    for part in parts:
        if part.kind != "tool_call":
            events += grow(part.kind, part.text)
        for piece in part.pieces:
            events += grow_call(piece)
        if part.call is not None:
            events += close()
    return events


def _content(text: str, call: Call) -> str:
    """Return a text of an answer, or no text for the cut beginning of a call; see `Call.may_have`."""
    return text if text and call.may_have(text) else ""


def _rejected(parsed: ToolCall, checked: ToolCall, call: Call) -> str:
    """Return the text of a malformed call, or of a call whose input is outside of its tool's grammar."""
    if checked.error is None:
        return ""
    return _content(checked.text, call) if parsed.error is not None else checked.text


def _checked(call: ToolCall, custom: Mapping[str, CustomTool]) -> ToolCall:
    """Return a call, with an error if its custom tool has no input or one outside the grammar."""
    if call.error is not None or call.name not in custom:
        return call
    text = call.arguments.get(INPUT)
    if not isinstance(text, str):
        return replace(call, error=f"expected the argument {INPUT}, got {preview(call.arguments, 200)}")
    if custom[call.name].accepts(text):
        return call
    return replace(call, error=f"expected an input of the tool's grammar, got {preview(text, 200)}")


def call_text(call: ToolCall, custom: Mapping[str, CustomTool]) -> str:
    """Return the arguments of a call as JSON, or the input of a custom tool."""
    return str(call.arguments[INPUT]) if call.name in custom else json.dumps(call.arguments, ensure_ascii=False)
