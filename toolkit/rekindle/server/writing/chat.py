"""Chat completions, as a whole and in chunks."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.core.text.response import Part, Reading, ToolCall
from rekindle.results.generation import Generation
from rekindle.server.reading.call import Call
from rekindle.server.reading.chat import ChatCall
from rekindle.server.refused import Refused
from rekindle.server.writing.common import DONE, Head, event, failed, finish_reason, usage, usage_so_far
from rekindle.server.writing.logprobs import chat_logprobs


def chat_completion(head: Head, generations: Sequence[Generation], asked: ChatCall) -> dict[str, Any]:
    """Return a chat completion with a choice for each generation."""
    choices = [_choice(index, each, asked) for index, each in enumerate(generations)]
    return {**head.of("chat.completion"), "choices": choices, "usage": usage(generations, asked.call.draws)}


def _choice(index: int, generation: Generation, asked: ChatCall) -> dict[str, Any]:
    calls = readable(generation.tool_calls, asked.one_call)
    content = generation.content + unread(generation.tool_calls, asked.call)
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if generation.reasoning is not None:
        message["reasoning_content"] = generation.reasoning
    if calls:
        message["tool_calls"] = [called(call) for call in calls]
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(generation.logprobs or (), by_id=asked.by_id) if asked.logprobs else None,
        "finish_reason": finish_reason(generation, called=bool(calls)),
    }


def readable(calls: Sequence[ToolCall], one_call: bool) -> list[ToolCall]:
    """Return the calls that can be read; the first alone if at most one is wanted."""
    read = [call for call in calls if call.error is None]
    return read[:1] if one_call else read


def unread(calls: Sequence[ToolCall], asked: Call) -> str:
    """Return the text of the calls that cannot be read, as content; there is none where a call had to come."""
    return "" if asked.needs_calls else "".join(call.text for call in calls if call.error is not None)


def called(call: ToolCall) -> dict[str, Any]:
    """Return a tool call with its arguments as JSON in a text."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


class ChatChunks:
    """Writes a chat completion as chunks.

    Args:
        records: of the request of each choice.
    """

    def __init__(self, head: Head, asked: ChatCall, records: Sequence[Record]):
        self._head, self._asked, self._records = head, asked, records
        self._choices = [_ChoiceChunks(asked) for _ in records]

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        return [
            self._chunk(choice, delta, None, logprobs) for delta, logprobs in self._choices[choice].push(piece, record)
        ]

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        written = self._choices[choice]
        chunks = [self._chunk(choice, delta, None, None) for delta in written.finish()]
        reason = finish_reason(generation, called=written.calls > 0)
        return [*chunks, self._chunk(choice, {}, reason, None)]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        streaming = self._asked.call.streaming
        if streaming is None or not streaming.usage:
            return [DONE]
        said = usage(generations, self._asked.call.draws)
        return [event({**self._head.of("chat.completion.chunk"), "choices": [], "usage": said}), DONE]

    def failed(self, why: Refused) -> bytes:
        """See `Chunks`."""
        return failed(why)

    def _chunk(self, index: int, delta: Mapping[str, Any], reason: str | None, logprobs: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        chunk: dict[str, Any] = {**self._head.of("chat.completion.chunk"), "choices": [choice]}
        streaming = self._asked.call.streaming
        if streaming is not None and streaming.each:
            chunk["usage"] = usage_so_far(self._records, self._asked.call.draws)
        return event(chunk)


class _ChoiceChunks:
    """Makes the deltas of one choice.

    Attributes:
        calls: how many tool calls were given.
    """

    def __init__(self, asked: ChatCall):
        self._asked = asked
        self._reading: Reading | None = None
        self._begun = False
        self.calls = 0

    def push(self, piece: Piece, record: Record) -> list[tuple[dict[str, Any], Any]]:
        """Return the deltas for a piece, each with its log-probabilities, of which the last has all."""
        deltas: list[dict[str, Any]] = []
        if not self._begun:
            self._begun = True
            self._reading = record.reading()  # the prompt is known by now
            deltas.append({"role": "assistant", "content": ""})
        if self._reading is not None:
            deltas += self._deltas(self._reading.push(piece.text, piece.token_ids))
        elif piece.text:
            deltas.append({"content": piece.text})
        if not self._asked.logprobs:
            return [(delta, None) for delta in deltas]
        logprobs = chat_logprobs(piece.logprobs or (), by_id=self._asked.by_id)
        deltas = deltas or [{"content": ""}]
        return [*((delta, None) for delta in deltas[:-1]), (deltas[-1], logprobs)]

    def finish(self) -> list[dict[str, Any]]:
        """Return the deltas for what the end tells."""
        deltas: list[dict[str, Any]] = [] if self._begun else [{"role": "assistant", "content": ""}]
        return deltas + (self._deltas(self._reading.finish()[1]) if self._reading is not None else [])

    def _deltas(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if part.kind == "reasoning":
                deltas.append({"reasoning_content": part.text})
            elif part.kind == "content":
                deltas.append({"content": part.text})
            elif part.call is not None and part.call.error is not None:
                text = unread([part.call], self._asked.call)
                deltas += [{"content": text}] if text else []
            elif part.call is not None and not (self._asked.one_call and self.calls):
                deltas.append({"tool_calls": [{"index": self.calls, **called(part.call)}]})
                self.calls += 1
        return deltas
