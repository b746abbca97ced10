"""Responses in events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece, TokenLogprob
from rekindle.formats.response import CallPiece, Part, PartKind
from rekindle.results.generation import Generation
from rekindle.server.common.answer import AnswerParts, events_of
from rekindle.server.common.errors import ApiError
from rekindle.server.common.events import COMMENT, EVENT_STREAM, Head, StreamForm, large_named_event, named_event
from rekindle.server.common.logprobs import tokens_of
from rekindle.server.common.tools.offer import Tools
from rekindle.server.openai.responses.answer import (
    Item,
    call_item,
    final_response,
    initial_response,
    message_item,
    output_logprobs,
    reasoning_item,
)
from rekindle.server.openai.responses.body import ResponseRequest


@dataclass(slots=True)
class _OpenItem:
    """The item that grows in a stream: a text, reasoning, or a call.

    Attributes:
        head: the identity of the response.
        index: its place in the output.
        kind: the kind of its parts.
        tools: the tools of the request.
        call: the first piece of a call; None for another item.
        texts: its text so far, or its arguments, in pieces.
        logprobs: the log-probabilities of its tokens so far.
    """

    head: Head
    index: int
    kind: PartKind
    tools: Tools
    call: CallPiece | None = None
    texts: list[str] = field(default_factory=list)
    logprobs: list[Item] = field(default_factory=list)

    def object(self, text: str) -> Item:
        """Return the item as if it ended with this text."""
        if self.call is not None:
            return call_item(self.head, self.index, replace(self.call, arguments=text), self.tools)
        if self.kind == "reasoning":
            return reasoning_item(self.head, self.index, text)
        return message_item(self.head, self.index, text, self.logprobs)

    @property
    def is_custom(self) -> bool:
        """True for a call of a custom tool."""
        return self.call is not None and self.call.name in self.tools.custom

    @property
    def event(self) -> str:
        """The start of the names of its events."""
        if self.call is not None:
            return "response.custom_tool_call_input" if self.is_custom else "response.function_call_arguments"
        return "response.reasoning_text" if self.kind == "reasoning" else "response.output_text"

    @property
    def place(self) -> Item:
        """The fields of its events for its place."""
        place = {"item_id": self.object("")["id"], "output_index": self.index}
        return place if self.call is not None else {**place, "content_index": 0}

    def scores(self, logprobs: Sequence[Item]) -> Item:
        """Return the field of its events for log-probabilities; only a text has one."""
        return {"logprobs": list(logprobs)} if self.kind == "content" else {}


class ResponseChunks:
    """Writer of a response as events. An item is open while its text grows.

    The first and the last events repeat the tools of the request. The first are made with the writer.

    Args:
        head: the identity of the response.
        request: the request.
        keep: called with the complete response.
    """

    content_type = EVENT_STREAM

    def __init__(self, head: Head, request: ResponseRequest, keep: Callable[[Item], None]):
        self._head, self._request, self._keep = head, request, keep
        self._sequence_number = 0
        self._items: list[Item] = []
        self._open: _OpenItem | None = None
        self._tokens: list[TokenLogprob] = []  # of the content, and of marks around it, not written yet
        self._parts = AnswerParts(request.call, one_call=request.one_call, custom=request.tools.custom)
        initial = initial_response(head, request)
        self._first = [self._state_event(f"response.{name}", initial) for name in ("created", "in_progress")]

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        if self._request.logprobs:
            self._tokens += piece.logprobs or ()
        return self._take_first() + self._part_events(self._parts.push(piece, record))

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        events = self._take_first() + self._part_events(self._parts.finish(record))
        if not self._items and self._open is None:
            events += self._grow("content", "")
        return events + self._close(complete=False)

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        final = final_response(self._head, self._items, generations[0], self._request)
        self._keep(final)
        return [self._state_event(f"response.{final['status']}", final)]

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return self._event("error", code=error.code or error.kind, message=error.message, param=error.param)

    def _take_first(self) -> list[bytes]:
        first, self._first = self._first, []
        return first

    def _part_events(self, parts: Sequence[Part]) -> list[bytes]:
        return events_of(parts, self._grow, self._grow_call, partial(self._close, complete=True))

    def _grow_call(self, piece: CallPiece) -> list[bytes]:
        """Return the events for more arguments of a call."""
        events: list[bytes] = []
        item = self._open
        if item is None or item.call is None or item.call.id != piece.id:
            events += self._close(complete=False)
            item = _OpenItem(self._head, len(self._items), "tool_call", self._request.tools, piece)
            events.append(self._begin(item))
        item.texts.append(piece.arguments)
        return [*events, self._event(f"{item.event}.delta", **item.place, delta=piece.arguments)]

    def _grow(self, kind: PartKind, text: str) -> list[bytes]:
        """Return the events for more text of this kind."""
        events: list[bytes] = []
        item = self._open
        if item is None or item.kind != kind:
            events += self._close(complete=False)
            item = _OpenItem(self._head, len(self._items), kind, self._request.tools)
            events.append(self._begin(item, content=[]))
            part = item.object("")["content"][0]
            events.append(self._event("response.content_part.added", **item.place, part=part))
        item.texts.append(text)
        logprobs = self._take_logprobs(item, text) if kind == "content" else []
        item.logprobs += logprobs
        return [*events, self._event(f"{item.event}.delta", **item.place, delta=text, **item.scores(logprobs))]

    def _take_logprobs(self, item: _OpenItem, text: str) -> list[Item]:
        """Take the log-probabilities for more text of the content, without marks before its beginning."""
        tokens, after = (self._tokens, []) if item.logprobs else tokens_of(text, self._tokens)
        self._tokens = list(after)
        return output_logprobs(tokens)

    def _begin(self, item: _OpenItem, **fields: Any) -> bytes:
        """Open an item, and return the event for it."""
        self._open = item
        empty = {**item.object(""), "status": "in_progress", **fields}
        return self._event("response.output_item.added", output_index=item.index, item=empty)

    def _close(self, *, complete: bool) -> list[bytes]:
        """Return the events for the end of the open item; a cut or malformed call stays incomplete."""
        item, self._open = self._open, None
        if item is None:
            return []
        text, events = "".join(item.texts), list[bytes]()
        final = item.object(text)
        if item.call is None:
            events.append(self._event(f"{item.event}.done", **item.place, text=text, **item.scores(item.logprobs)))
            events.append(self._event("response.content_part.done", **item.place, part=final["content"][0]))
        elif complete:
            fields = {"input": text} if item.is_custom else {"arguments": text, "name": final["name"]}
            events.append(self._event(f"{item.event}.done", **item.place, **fields))
        else:
            final["status"] = "incomplete"
        self._items.append(final)
        return [*events, self._event("response.output_item.done", output_index=item.index, item=final)]

    def _state_event(self, kind: str, response: Item) -> bytes:
        """Return an event with the whole response."""
        self._sequence_number += 1
        number = self._sequence_number - 1
        return large_named_event(kind, {"type": kind, "sequence_number": number, "response": response})

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence_number += 1
        return named_event(kind, {"type": kind, "sequence_number": self._sequence_number - 1, **fields})


def _error_event(error: ApiError) -> bytes:
    fields = {"code": error.code or error.kind, "message": error.message, "param": error.param}
    return named_event("error", {"type": "error", "sequence_number": 0, **fields})


RESPONSES: Final = StreamForm(EVENT_STREAM, COMMENT, _error_event)
"""The form of the streams of responses."""
