"""Messages of Anthropic's API in events."""

from collections.abc import Sequence
from typing import Any, Final

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.formats.response import CallPiece, Part, PartKind
from rekindle.results.generation import Generation
from rekindle.server.anthropic.answer import Block, empty_message, end_of, input_usage, signature_of, usage_of
from rekindle.server.anthropic.body import MessagesRequest
from rekindle.server.common.answer import AnswerParts, events_of
from rekindle.server.common.errors import ApiError, anthropic_error
from rekindle.server.common.events import EVENT_STREAM, Head, StreamForm, named_event


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
        end = end_of(generation, self._request, self._parts.calls > 0)
        last = _event("message_delta", delta=end, usage=usage_of(generation))
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
        usage = input_usage(record.standing.prompt_tokens or 0, record.cached.total)
        return [_event("message_start", message={**empty_message(self._head), "usage": {**usage, "output_tokens": 0}})]

    def _part_events(self, parts: Sequence[Part]) -> list[bytes]:
        return events_of(parts, self._grow, self._grow_call, self._close)

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
        signature = {"type": "signature_delta", "signature": signature_of(self._head)}
        events = [self._delta(signature)] if self._open == "reasoning" else []
        events.append(_event("content_block_stop", index=self._blocks))
        self._open = None
        self._blocks += 1
        return events


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})


MESSAGES: Final = StreamForm(
    EVENT_STREAM, named_event("ping", {"type": "ping"}), lambda error: named_event("error", anthropic_error(error))
)
"""The form of the streams of messages."""
