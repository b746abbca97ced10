"""Chat completions, complete and in chunks."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.core.text.response import Part, Reading, ToolCall
from rekindle.results.generation import Generation
from rekindle.server.errors import ApiError
from rekindle.server.reading.call import Call
from rekindle.server.reading.chat import ChatRequest
from rekindle.server.writing.common import (
    DONE,
    EVENT_STREAM,
    Head,
    error_events,
    event,
    finish_reason,
    usage,
    usage_so_far,
)
from rekindle.server.writing.logprobs import chat_logprobs


def chat_completion(head: Head, generations: Sequence[Generation], request: ChatRequest) -> dict[str, Any]:
    """Return a chat completion with a choice for each generation."""
    choices = [_choice(index, each, request) for index, each in enumerate(generations)]
    return {**head.of("chat.completion"), "choices": choices, "usage": usage(generations, request.call.choices)}


def _choice(index: int, generation: Generation, request: ChatRequest) -> dict[str, Any]:
    calls = readable_calls(generation.tool_calls, request.one_call)
    content = generation.content + unreadable_text(generation.tool_calls, request.call)
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if generation.reasoning is not None:
        message["reasoning_content"] = generation.reasoning
    if calls:
        message["tool_calls"] = [tool_call_object(call) for call in calls]
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(generation.logprobs or (), by_id=request.by_id) if request.logprobs else None,
        "finish_reason": finish_reason(generation, has_calls=bool(calls)),
    }


def readable_calls(calls: Sequence[ToolCall], one_call: bool) -> list[ToolCall]:
    """Return the calls without a parse error; only the first if `one_call`."""
    valid = [call for call in calls if call.error is None]
    return valid[:1] if one_call else valid


def unreadable_text(calls: Sequence[ToolCall], request: Call) -> str:
    """Return the text of the calls with a parse error, for the content; empty if the answer must be a call."""
    return "" if request.needs_calls else "".join(call.text for call in calls if call.error is not None)


def tool_call_object(call: ToolCall) -> dict[str, Any]:
    """Return a tool call with its arguments as JSON text."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


class ChatChunks:
    """Writer of a chat completion as chunks.

    Args:
        head: the identity of the answer.
        request: the request to answer.
        records: the record of each choice's request.
    """

    content_type = EVENT_STREAM

    def __init__(self, head: Head, request: ChatRequest, records: Sequence[Record]):
        self._head, self._request, self._records = head, request, records
        self._choices = [_ChoiceChunks(request) for _ in records]

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        return [
            self._chunk(choice, delta, None, logprobs) for delta, logprobs in self._choices[choice].push(piece, record)
        ]

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        writer = self._choices[choice]
        chunks = [self._chunk(choice, delta, None, None) for delta in writer.finish()]
        reason = finish_reason(generation, has_calls=writer.calls > 0)
        return [*chunks, self._chunk(choice, {}, reason, None)]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        streaming = self._request.call.streaming
        if streaming is None or not streaming.usage:
            return [DONE]
        totals = usage(generations, self._request.call.choices)
        return [event({**self._head.of("chat.completion.chunk"), "choices": [], "usage": totals}), DONE]

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return error_events(error)

    def _chunk(self, index: int, delta: Mapping[str, Any], reason: str | None, logprobs: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        chunk: dict[str, Any] = {**self._head.of("chat.completion.chunk"), "choices": [choice]}
        streaming = self._request.call.streaming
        if streaming is not None and streaming.continuous:
            chunk["usage"] = usage_so_far(self._records, self._request.call.choices)
        return event(chunk)


class _ChoiceChunks:
    """Writer of one choice's deltas.

    Attributes:
        calls: the number of tool calls so far.
    """

    def __init__(self, request: ChatRequest):
        self._request = request
        self._reading: Reading | None = None
        self._has_started = False
        self.calls = 0

    def push(self, piece: Piece, record: Record) -> list[tuple[dict[str, Any], Any]]:
        """Return the deltas of a piece with their log-probabilities; the last delta has those of the whole piece."""
        deltas: list[dict[str, Any]] = []
        if not self._has_started:
            self._has_started = True
            self._reading = record.reading()  # the prompt is tokenized by now
            deltas.append({"role": "assistant", "content": ""})
        if self._reading is not None:
            deltas += self._deltas(self._reading.push(piece.text, piece.token_ids))
        elif piece.text:
            deltas.append({"content": piece.text})
        if not self._request.logprobs:
            return [(delta, None) for delta in deltas]
        logprobs = chat_logprobs(piece.logprobs or (), by_id=self._request.by_id)
        deltas = deltas or [{"content": ""}]
        return [*((delta, None) for delta in deltas[:-1]), (deltas[-1], logprobs)]

    def finish(self) -> list[dict[str, Any]]:
        """Return the deltas for the end of the output."""
        deltas: list[dict[str, Any]] = [] if self._has_started else [{"role": "assistant", "content": ""}]
        return deltas + (self._deltas(self._reading.finish()[1]) if self._reading is not None else [])

    def _deltas(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if part.kind == "reasoning":
                deltas.append({"reasoning_content": part.text})
            elif part.kind == "content":
                deltas.append({"content": part.text})
            elif part.call is not None and part.call.error is not None:
                text = unreadable_text([part.call], self._request.call)
                deltas += [{"content": text}] if text else []
            elif part.call is not None and not (self._request.one_call and self.calls):
                deltas.append({"tool_calls": [{"index": self.calls, **tool_call_object(part.call)}]})
                self.calls += 1
        return deltas
