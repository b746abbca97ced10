"""Responses, as a whole and in events: OpenAI's later form of a chat completion."""

import json
from collections.abc import Sequence
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.core.text.response import Part, Reading, ToolCall
from rekindle.results.generation import Generation
from rekindle.server.reading.responses import ResponseCall
from rekindle.server.refused import Refused
from rekindle.server.writing.chat import readable, unread
from rekindle.server.writing.common import Head, named_event

Item = dict[str, Any]


def response(head: Head, generation: Generation, asked: ResponseCall) -> dict[str, Any]:
    """Return a response with what a generation says."""
    items: list[Item] = []
    if generation.reasoning is not None:
        items.append(_reasoning_item(head, len(items), generation.reasoning))
    calls = readable(generation.tool_calls, asked.one_call)
    content = generation.content + unread(generation.tool_calls, asked.call)
    if content or not (items or calls):
        items.append(_message_item(head, len(items), content))
    for call in calls:
        items.append(_call_item(head, len(items), call))
    return finished(head, items, generation, asked)


def finished(head: Head, items: Sequence[Item], generation: Generation, asked: ResponseCall) -> dict[str, Any]:
    """Return a response that has ended with these items."""
    cut = generation.finish_reason == "length"
    used = generation.usage
    usage = {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": generation.cached_tokens},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.total_tokens,
    }
    return {
        **_begun(head, asked),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(items),
        "usage": usage,
    }


def _begun(head: Head, asked: ResponseCall) -> dict[str, Any]:
    defaults = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}}
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "model": head.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "previous_response_id": None,
        "usage": None,
        **defaults,
        **asked.told,
    }


def _id(kind: str, head: Head, place: int) -> str:
    return f"{kind}_{head.id.rpartition('-')[2]}_{place}"


def _message_item(head: Head, place: int, text: str) -> Item:
    item: Item = {"id": _id("msg", head, place), "type": "message", "role": "assistant", "status": "completed"}
    return {**item, "content": [_text_part(text)]}


def _text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _reasoning_item(head: Head, place: int, text: str) -> Item:
    item: Item = {"id": _id("rs", head, place), "type": "reasoning", "summary": [], "status": "completed"}
    return {**item, "content": [{"type": "reasoning_text", "text": text}]}


def _call_item(head: Head, place: int, call: ToolCall) -> Item:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    item: Item = {"id": _id("fc", head, place), "type": "function_call", "status": "completed"}
    return {**item, "call_id": call.id, "name": call.name, "arguments": arguments}


class ResponseChunks:
    """Writes a response as events. An item is open while its text grows."""

    def __init__(self, head: Head, asked: ResponseCall):
        self._head, self._asked = head, asked
        self._reading: Reading | None = None
        self._sent = 0
        self._items: list[Item] = []
        self._open: str | None = None
        self._text: list[str] = []
        self._calls = 0

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        events = self._beginning(record)
        if self._reading is not None:
            return events + self._parts(self._reading.push(piece.text, piece.token_ids))
        return events + (self._grow("content", piece.text) if piece.text else [])

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        events = self._beginning(record)
        if self._reading is not None:
            events += self._parts(self._reading.finish()[1])
        if not self._items and self._open is None:
            events += self._grow("content", "")
        events += self._close()
        made = finished(self._head, self._items, generation, self._asked)
        return [*events, self._event(f"response.{made['status']}", response=made)]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        return []

    def failed(self, why: Refused) -> bytes:
        """See `Chunks`."""
        return self._event("error", code=why.code or why.kind, message=why.message, param=why.param)

    def _beginning(self, record: Record) -> list[bytes]:
        if self._sent:
            return []
        self._reading = record.reading()  # the prompt is known by now
        begun = _begun(self._head, self._asked)
        return [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]

    def _parts(self, parts: Sequence[Part]) -> list[bytes]:
        events: list[bytes] = []
        for part in parts:
            if part.kind != "tool_call":
                events += self._grow(part.kind, part.text)
            elif part.call is not None and part.call.error is not None:
                text = unread([part.call], self._asked.call)
                events += self._grow("content", text) if text else []
            elif part.call is not None and not (self._asked.one_call and self._calls):
                self._calls += 1
                events += [*self._close(), *self._called(part.call)]
        return events

    def _grow(self, kind: str, text: str) -> list[bytes]:
        """Return the events for more text of this kind."""
        events: list[bytes] = []
        if self._open != kind:
            events += self._close()
            self._open, self._text = kind, []
            empty = self._item("")
            events.append(self._added({**empty, "status": "in_progress", "content": []}))
            events.append(self._of_part("response.content_part.added", part=empty["content"][0]))
        self._text.append(text)
        return [*events, self._of_part(f"{self._prefix}.delta", delta=text, **self._no_logprobs)]

    def _close(self) -> list[bytes]:
        """Return the events for the end of the item that is open."""
        if self._open is None:
            return []
        text = "".join(self._text)
        item = self._item(text)
        events = [
            self._of_part(f"{self._prefix}.done", text=text, **self._no_logprobs),
            self._of_part("response.content_part.done", part=item["content"][0]),
            self._event("response.output_item.done", output_index=len(self._items), item=item),
        ]
        self._items.append(item)
        self._open = None
        return events

    def _called(self, call: ToolCall) -> list[bytes]:
        item = _call_item(self._head, len(self._items), call)
        place = {"item_id": item["id"], "output_index": len(self._items)}
        arguments = item["arguments"]
        events = [
            self._added({**item, "status": "in_progress", "arguments": ""}),
            self._event("response.function_call_arguments.delta", **place, delta=arguments),
            self._event("response.function_call_arguments.done", **place, arguments=arguments, name=call.name),
            self._event("response.output_item.done", output_index=len(self._items), item=item),
        ]
        self._items.append(item)
        return events

    def _item(self, text: str) -> Item:
        make = _reasoning_item if self._open == "reasoning" else _message_item
        return make(self._head, len(self._items), text)

    @property
    def _prefix(self) -> str:
        return "response.reasoning_text" if self._open == "reasoning" else "response.output_text"

    @property
    def _no_logprobs(self) -> dict[str, Any]:
        return {} if self._open == "reasoning" else {"logprobs": []}

    def _added(self, item: Item) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _of_part(self, kind: str, **said: Any) -> bytes:
        place = {"item_id": self._item("")["id"], "output_index": len(self._items), "content_index": 0}
        return self._event(kind, **place, **said)

    def _event(self, kind: str, **said: Any) -> bytes:
        self._sent += 1
        return named_event(kind, {"type": kind, "sequence_number": self._sent - 1, **said})
