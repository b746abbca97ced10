"""The parts of one answer, complete and as they come, for all APIs with reasoning, content and tool calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.core.text.response import Part, Reading, ToolCall
from rekindle.results.generation import Generation
from rekindle.server.reading.call import Call
from rekindle.server.writing.chat import CallProgress, readable_calls, unreadable_text


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an answer.

    Attributes:
        call: the call of the session.
        one_call: whether the answer has at most one tool call.
        repeated: the text of the continued last message, by kind. The parsed answer begins with it, the answer of the
            server does not.
    """

    call: Call
    one_call: bool = False
    repeated: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, call: Call, one_call: bool, reasoning_key: str | None) -> "Form":
        """Return the form of the answer to a conversation."""
        if not call.options.get("continue_final_message"):
            return cls(call, one_call)
        last = call.prompt[-1]
        reasoning = last.get(reasoning_key) if reasoning_key is not None else None
        repeated = {"content": _text(last["content"]).lstrip(), "reasoning": (reasoning or "").strip()}
        return cls(call, one_call, repeated)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


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
    def of(cls, generation: Generation, form: Form) -> "Answer":
        """Return the answer of a generation."""
        reasoning, content = generation.reasoning, generation.content
        if generation.response is not None:
            content = content[len(form.repeated.get("content", "")) :]
            reasoning = (reasoning or "")[len(form.repeated.get("reasoning", "")) :] or None
        calls = _until_first(generation.tool_calls) if form.one_call else generation.tool_calls
        content += unreadable_text(calls, form.call)
        return cls(reasoning, content, readable_calls(calls, form.one_call))


def _until_first(calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    """Return the calls up to the first readable one."""
    return calls[: next((place + 1 for place, call in enumerate(calls) if call.error is None), len(calls))]


class AnswerParts:
    """Reader of an answer as it comes."""

    def __init__(self, form: Form):
        self._form = form
        self._to_skip = {kind: len(text) for kind, text in form.repeated.items()}
        self._reading: Reading | None = None
        self._has_started = False
        self._progress = CallProgress(one_call=form.one_call)

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
            self._reading = record.reading()  # the prompt is tokenized by now

    def _parts(self, parts: Sequence[Part]) -> list[Part]:
        result: list[Part] = []
        for part in parts:
            if part.kind != "tool_call":
                skip = self._to_skip.get(part.kind, 0)
                self._to_skip[part.kind] = max(0, skip - len(part.text))
                result += [Part(part.kind, part.text[skip:])] if part.text[skip:] else []
            elif not (self._form.one_call and self.calls):
                pieces = tuple(piece for _, piece, _ in self._progress.take(part))
                call = part.call if part.call is not None and part.call.error is None else None
                result += [Part("tool_call", "", call, pieces)] if pieces or call else []
                text = self._progress.text_of(part, self._form.call)
                result += [Part("content", text)] if text else []
        return result
