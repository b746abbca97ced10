"""Messages of Anthropic's API, complete and in events."""

from collections.abc import Sequence
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.core.text.response import CallPiece, Part, PartKind
from rekindle.results.generation import Generation
from rekindle.server.errors import ApiError, anthropic_error
from rekindle.server.reading.messages import MessagesRequest
from rekindle.server.writing.answer import Answer, AnswerParts
from rekindle.server.writing.common import EVENT_STREAM, Head, named_event, timestamp

Block = dict[str, Any]


def message_object(head: Head, generation: Generation, request: MessagesRequest) -> dict[str, Any]:
    """Return the message for a generation."""
    answer = Answer.of(generation, request.call, one_call=request.one_call)
    blocks: list[Block] = []
    if answer.reasoning is not None:
        text = answer.reasoning if request.shows_thinking else ""
        blocks.append({"type": "thinking", "thinking": text, "signature": _signature(head)})
    if answer.content or not (blocks or answer.calls):
        blocks.append({"type": "text", "text": answer.content})
    for call in answer.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
    end = _end(generation, request, bool(answer.calls))
    return {**_start(head), "content": blocks, **end, "usage": _usage(generation)}


def _start(head: Head) -> dict[str, Any]:
    start = {"id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": []}
    return {**start, "stop_reason": None, "stop_sequence": None}


def _end(generation: Generation, request: MessagesRequest, has_calls: bool) -> dict[str, Any]:
    """Return the reason for the end of a message, and its stop sequence if one ended it."""
    if has_calls and request.one_call:  # what was cut are further calls, left out of the message
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if generation.finish_reason == "length":
        full = generation.usage.completion_tokens < request.call.options["max_tokens"]
        return {"stop_reason": "model_context_window_exceeded" if full else "max_tokens", "stop_sequence": None}
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(generation.stopped_by, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": generation.stopped_by}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(generation: Generation) -> dict[str, Any]:
    counts, cached = generation.usage, generation.cached_tokens
    return {
        **_input_usage(counts.prompt_tokens, cached),
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"thinking_tokens": counts.reasoning_tokens},
    }


def _input_usage(prompt: int, cached: int) -> dict[str, int]:
    """Return the usage of a prompt, in parts with its number of tokens as their sum."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _signature(head: Head) -> str:
    """Return the signature of thinking. Clients send it back, and the server does not check it."""
    return head.id


class MessageChunks:
    """Writer of a message as events. A block is open while its text grows."""

    content_type = EVENT_STREAM

    def __init__(self, head: Head, request: MessagesRequest):
        self._head, self._request = head, request
        self._parts = AnswerParts(request.call, one_call=request.one_call)
        self._has_started = False
        self._open: PartKind | None = None
        self._call: str | None = None  # the id of the last call
        self._blocks = 0

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        return self._start_events(record) + self._part_events(self._parts.push(piece, record))

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        events = self._start_events(record) + self._part_events(self._parts.finish(record))
        if not self._blocks and self._open is None:
            events += self._grow("content", "")
        end = _end(generation, self._request, self._parts.calls > 0)
        last = _event("message_delta", delta=end, usage=_usage(generation))
        return [*events, *self._close(), last, _event("message_stop")]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        return []

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return named_event("error", anthropic_error(error))

    def _start_events(self, record: Record) -> list[bytes]:
        if self._has_started:
            return []
        self._has_started = True
        usage = _input_usage(record.standing.prompt_tokens or 0, record.cached.total)
        return [_event("message_start", message={**_start(self._head), "usage": {**usage, "output_tokens": 0}})]

    def _part_events(self, parts: Sequence[Part]) -> list[bytes]:
        events: list[bytes] = []
        for part in parts:
            if part.kind != "tool_call":
                events += self._grow(part.kind, part.text)
            for piece in part.pieces:
                events += self._grow_call(piece)
            if part.call is not None:
                events += self._close()
        return events

    def _grow(self, kind: PartKind, text: str) -> list[bytes]:
        """Return the events for more text of this kind."""
        events: list[bytes] = []
        if self._open != kind:
            events += self._close()
            self._open = kind
            thinking = {"type": "thinking", "thinking": "", "signature": ""}
            events.append(self._begin(thinking if kind == "reasoning" else {"type": "text", "text": ""}))
        if kind != "reasoning":
            return [*events, self._delta({"type": "text_delta", "text": text})]
        if not self._request.shows_thinking:
            return events
        return [*events, self._delta({"type": "thinking_delta", "thinking": text})]

    def _grow_call(self, piece: CallPiece) -> list[bytes]:
        """Return the events for more arguments of a call. A cut or malformed call ends with its block."""
        events: list[bytes] = []
        if self._call != piece.id:
            events += self._close()
            self._open, self._call = "tool_call", piece.id
            events.append(self._begin({"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}))
        return [*events, self._delta({"type": "input_json_delta", "partial_json": piece.arguments})]

    def _begin(self, block: Block) -> bytes:
        return _event("content_block_start", index=self._blocks, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _close(self) -> list[bytes]:
        """Return the events for the end of the open block."""
        if self._open is None:
            return []
        signature = {"type": "signature_delta", "signature": _signature(self._head)}
        events = [self._delta(signature)] if self._open == "reasoning" else []
        events.append(_event("content_block_stop", index=self._blocks))
        self._open = None
        self._blocks += 1
        return events


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})


def model_object(name: str, since: int, longest: int | None) -> dict[str, Any]:
    """Return the object describing a model.

    Args:
        name: its name for clients.
        since: the start of its service, in seconds since 1970.
        longest: the tokens of its context; None while it is closed.
    """
    limits = {"max_input_tokens": longest, "max_tokens": longest}
    return {"type": "model", "id": name, "display_name": name, "created_at": timestamp(since), **limits}


def models_page(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the list of all models, in one page."""
    names = [model["id"] for model in models] or [None]
    return {"data": list(models), "has_more": False, "first_id": names[0], "last_id": names[-1]}
