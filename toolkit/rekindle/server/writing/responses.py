"""Responses, OpenAI's successor of chat completions, complete and in events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece, TokenLogprob
from rekindle.core.text.response import CallPiece, Part, PartKind, Reading
from rekindle.results.generation import Generation
from rekindle.server.errors import ApiError
from rekindle.server.reading.responses import ResponseRequest
from rekindle.server.reading.tools.offer import Tools
from rekindle.server.writing.chat import CallProgress, call_text, check_inputs, content_of, readable_calls
from rekindle.server.writing.common import EVENT_STREAM, Head, large_named_event, named_event
from rekindle.server.writing.logprobs import chat_logprobs, tokens_of

Item = dict[str, Any]


def response(head: Head, generation: Generation, request: ResponseRequest) -> dict[str, Any]:
    """Return the response for a generation."""
    items: list[Item] = []
    if generation.reasoning is not None:
        items.append(_reasoning_item(head, len(items), generation.reasoning))
    all_calls = check_inputs(generation.tool_calls, request.tools.custom)
    calls = readable_calls(all_calls, request.one_call)
    content = content_of(generation.content, all_calls, request.call)
    if content or not (items or calls):
        tokens, _ = tokens_of(content, (generation.logprobs or ()) if request.logprobs else ())
        items.append(_message_item(head, len(items), content, output_logprobs(tokens)))
    for call in calls:
        piece = CallPiece(call.id, call.name, call_text(call, request.tools.custom))
        items.append(_call_item(head, len(items), piece, request.tools))
    return final_response(head, items, generation, request)


def final_response(
    head: Head, items: Sequence[Item], generation: Generation, request: ResponseRequest
) -> dict[str, Any]:
    """Return the response of a finished generation, with these items as its output."""
    cut = generation.finish_reason == "length"
    counts = generation.usage
    usage = {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": generation.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
        "total_tokens": counts.total_tokens,
    }
    return {
        **_initial_response(head, request),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(items),
        "usage": usage,
    }


def _initial_response(head: Head, request: ResponseRequest) -> dict[str, Any]:
    defaults = {"tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}}
    absent = dict.fromkeys(("access_programs", "instructions", "temperature", "top_p"))
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "model": head.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "previous_response_id": request.previous,
        "usage": None,
        **defaults,
        **absent,
        **request.echo,
        "tools": [_tool(each) for each in request.echo.get("tools", ())],
    }


def _tool(tool: Any) -> Any:
    """Return a tool of the request with all fields that OpenAI's API has in a response."""
    match tool:
        case {"type": "function"}:
            return {"parameters": None, "strict": None, **tool}
        case {"type": "namespace", "tools": list(tools)}:
            return {"description": "", **tool, "tools": [_tool(each) for each in tools]}
    return tool


def output_logprobs(tokens: Sequence[TokenLogprob]) -> list[Item]:
    """Return the log-probabilities of tokens in the form of an output text."""
    entries: list[Item] = chat_logprobs(tokens)["content"]
    return entries


def _id(kind: str, head: Head, place: int) -> str:
    return f"{kind}_{head.id.rpartition('-')[2]}_{place}"


def _message_item(head: Head, place: int, text: str, logprobs: Sequence[Item] = ()) -> Item:
    item: Item = {"id": _id("msg", head, place), "type": "message", "role": "assistant", "status": "completed"}
    return {**item, "content": [_text_part(text, logprobs)]}


def _text_part(text: str, logprobs: Sequence[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _reasoning_item(head: Head, place: int, text: str) -> Item:
    item: Item = {"id": _id("rs", head, place), "type": "reasoning", "summary": [], "status": "completed"}
    return {**item, "content": [{"type": "reasoning_text", "text": text}]}


def _call_item(head: Head, place: int, piece: CallPiece, tools: Tools) -> Item:
    """Return the item of a call with the arguments of a piece."""
    is_custom = piece.name in tools.custom
    namespace, name = tools.namespaced.get(piece.name, (None, piece.name))
    prefix, kind = ("ctc", "custom_tool_call") if is_custom else ("fc", "function_call")
    item: Item = {"id": _id(prefix, head, place), "type": kind, "status": "completed", "call_id": piece.id}
    item |= {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {**item, "input" if is_custom else "arguments": piece.arguments}


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
            return _call_item(self.head, self.index, replace(self.call, arguments=text), self.tools)
        if self.kind == "reasoning":
            return _reasoning_item(self.head, self.index, text)
        return _message_item(self.head, self.index, text, self.logprobs)

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
        self._reading: Reading | None = None
        self._sequence_number = 0
        self._items: list[Item] = []
        self._open: _OpenItem | None = None
        self._tokens: list[TokenLogprob] = []  # of the content, and of marks around it, not written yet
        self._progress = CallProgress(one_call=request.one_call, custom=request.tools.custom)
        initial = _initial_response(head, request)
        self._first = [self._state_event(f"response.{name}", initial) for name in ("created", "in_progress")]

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        events = self._start_events(record)
        if self._request.logprobs:
            self._tokens += piece.logprobs or ()
        if self._reading is not None:
            return events + self._part_events(self._reading.push(piece.text, piece.token_ids))
        return events + (self._grow("content", piece.text) if piece.text else [])

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        events = self._start_events(record)
        if self._reading is not None:
            events += self._part_events(self._reading.finish()[1])
        if not self._items and self._open is None:
            events += self._grow("content", "")
        events += self._close(complete=False)
        return events

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        final = final_response(self._head, self._items, generations[0], self._request)
        self._keep(final)
        return [self._state_event(f"response.{final['status']}", final)]

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return self._event("error", code=error.code or error.kind, message=error.message, param=error.param)

    def _start_events(self, record: Record) -> list[bytes]:
        first, self._first = self._first, []
        if first:
            self._reading = record.reading()  # the prompt is tokenized by now
        return first

    def _part_events(self, parts: Sequence[Part]) -> list[bytes]:
        events: list[bytes] = []
        for part in parts:
            if part.kind == "reasoning":
                events += self._grow(part.kind, part.text)
                continue
            complete = self._progress.complete
            for _, piece, is_first in self._progress.take(part):
                events += self._grow_call(piece, is_first=is_first)
            if self._progress.complete > complete:
                events += self._close(complete=True)
            text = self._progress.text_of(part, self._request.call)
            events += self._grow("content", text) if text else []
        return events

    def _grow_call(self, piece: CallPiece, *, is_first: bool) -> list[bytes]:
        """Return the events for more arguments of a call."""
        events: list[bytes] = []
        item = self._open
        if is_first or item is None:
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
