"""The parts of one answer, complete and as they come, for all APIs with reasoning, content and tool calls."""

from collections.abc import Sequence
from dataclasses import dataclass

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.core.text.response import Part, Reading, ToolCall
from rekindle.results.generation import Generation
from rekindle.server.common.call import Call
from rekindle.server.common.calls import CallProgress, content_of, readable_calls
from rekindle.server.common.continuation import reading_of, without_continued


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
    def of(cls, generation: Generation, call: Call, *, one_call: bool) -> "Answer":
        """Return the answer of a generation, with at most one tool call if `one_call`."""
        source = without_continued(generation, call)
        calls = _until_first(source.tool_calls) if one_call else source.tool_calls
        content = content_of(source.content, calls, call)
        return cls(source.reasoning, content, readable_calls(calls, one_call))


def _until_first(calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Return the calls up to the first readable one."""
    return calls[: next((place + 1 for place, call in enumerate(calls) if call.error is None), len(calls))]


class AnswerParts:
    """Reader of an answer as it comes.

    Args:
        call: the call of the session.
        one_call: whether the answer has at most one tool call.
    """

    def __init__(self, call: Call, *, one_call: bool):
        self._call, self._one_call = call, one_call
        self._reading: Reading | None = None
        self._has_started = False
        self._progress = CallProgress(one_call=one_call, custom={})

    @property
    def calls(self) -> int:
        """The number of complete tool calls so far."""
        return self._progress.complete

    def push(self, piece: Piece, record: Record) -> list[Part]:
        """Return the parts of a piece: non-empty texts, and tool calls in pieces; the last piece has the call."""
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
            if part.kind == "reasoning":
                result += [part] if part.text else []
            elif part.kind == "content" or not (self._one_call and self.calls):
                pieces = tuple(piece for _, piece, _ in self._progress.take(part))
                call = part.call if part.call is not None and part.call.error is None else None
                result += [Part("tool_call", "", call, pieces)] if pieces or call else []
                text = self._progress.text_of(part, self._call)
                result += [Part("content", text)] if text else []
        return result
