"""Responses, OpenAI's successor of chat completions, complete and in events."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece, TokenLogprob
from rekindle.core.text.response import CallPiece, Part, Reading
from rekindle.results.generation import Generation
from rekindle.server.errors import ApiError
from rekindle.server.reading.responses import ResponseRequest
from rekindle.server.writing.chat import CallProgress, call_text, check_inputs, content_of, readable_calls
from rekindle.server.writing.common import EVENT_STREAM, Head, named_event
from rekindle.server.writing.logprobs import chat_logprobs, tokens_of

Item = dict[str, Any]


def response(head: Head, generation: Generation, request: ResponseRequest) -> dict[str, Any]:
    """Return the response for a generation."""
    items: list[Item] = []
    if generation.reasoning is not None:
        items.append(_reasoning_item(head, len(items), generation.reasoning))
    all_calls = check_inputs(generation.tool_calls, request.custom)
    calls = readable_calls(all_calls, request.one_call)
    content = content_of(generation.content, all_calls, request.call)
    if content or not (items or calls):
        tokens, _ = tokens_of(content, (generation.logprobs or ()) if request.logprobs else ())
        items.append(_message_item(head, len(items), content, output_logprobs(tokens)))
    for call in calls:
        piece = CallPiece(call.id, call.name, call_text(call, request.custom))
        items.append(_call_item(head, len(items), piece, is_custom=call.name in request.custom))
    return final_response(head, items, generation, request)


def final_response(
    head: Head, items: Sequence[Item], generation: Generation, request: ResponseRequest
) -> dict[str, Any]:
    """Return the response of a finished generation, with these items as its output."""
    cut = generation.finish_reason == "length"
    counts = generation.usage
    usage = {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": generation.cached_tokens},
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
        "previous_response_id": request.previous,
        "usage": None,
        **defaults,
        **request.echo,
    }


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


def _call_item(head: Head, place: int, piece: CallPiece, *, is_custom: bool) -> Item:
    """Return the item of a call with the arguments of a piece."""
    prefix, kind = ("ctc", "custom_tool_call") if is_custom else ("fc", "function_call")
    item: Item = {"id": _id(prefix, head, place), "type": kind, "status": "completed"}
    return {**item, "call_id": piece.id, "name": piece.name, "input" if is_custom else "arguments": piece.arguments}


class ResponseChunks:
    """Writer of a response as events. An item is open while its text grows.

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
        self._open: str | None = None
        self._text: list[str] = []
        self._tokens: list[TokenLogprob] = []
        self._logprobs: list[Item] = []
        self._call: CallPiece | None = None
        self._progress = CallProgress(one_call=request.one_call, custom=request.custom)

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
        return [self._event(f"response.{final['status']}", response=final)]

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return self._event("error", code=error.code or error.kind, message=error.message, param=error.param)

    def _start_events(self, record: Record) -> list[bytes]:
        if self._sequence_number:
            return []
        self._reading = record.reading()  # the prompt is tokenized by now
        initial = _initial_response(self._head, self._request)
        return [self._event(f"response.{name}", response=initial) for name in ("created", "in_progress")]

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
                events += self._close()
            text = self._progress.text_of(part, self._request.call)
            events += self._grow("content", text) if text else []
        return events

    def _grow_call(self, piece: CallPiece, *, is_first: bool) -> list[bytes]:
        """Return the events for more arguments of a call."""
        events: list[bytes] = []
        if is_first:
            events += self._close(complete=False)
            self._open, self._text, self._call = "tool_call", [], piece
            events.append(self._added_event({**self._item(""), "status": "in_progress"}))
        self._text.append(piece.arguments)
        return [*events, self._call_event("delta", delta=piece.arguments)]

    def _close_call(self, *, complete: bool) -> list[bytes]:
        """Return the events for the end of the open call; a cut or malformed one stays incomplete."""
        text = "".join(self._text)
        item = {**self._item(text), "status": "completed" if complete else "incomplete"}
        fields = {"input": text} if self._is_custom else {"arguments": text, "name": item["name"]}
        events = [self._call_event("done", **fields)] if complete else []
        events.append(self._event("response.output_item.done", output_index=len(self._items), item=item))
        self._items.append(item)
        self._open = None
        return events

    def _call_event(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._item("")["id"], "output_index": len(self._items)}
        name = "custom_tool_call_input" if self._is_custom else "function_call_arguments"
        return self._event(f"response.{name}.{kind}", **place, **fields)

    @property
    def _is_custom(self) -> bool:
        """True if the open call is that of a custom tool."""
        return self._call is not None and self._call.name in self._request.custom

    def _grow(self, kind: str, text: str) -> list[bytes]:
        """Return the events for more text of this kind."""
        events: list[bytes] = []
        if self._open != kind:
            events += self._close(complete=False)
            self._open, self._text, self._logprobs = kind, [], []
            empty = self._item("")
            events.append(self._added_event({**empty, "status": "in_progress", "content": []}))
            events.append(self._part_event("response.content_part.added", part=empty["content"][0]))
        self._text.append(text)
        logprobs = self._take_logprobs(text) if kind == "content" else []
        self._logprobs += logprobs
        return [*events, self._part_event(f"{self._prefix}.delta", delta=text, **self._with_logprobs(logprobs))]

    def _take_logprobs(self, text: str) -> list[Item]:
        """Take the log-probabilities for more text of the content, without marks before its beginning."""
        tokens, after = (self._tokens, []) if self._logprobs else tokens_of(text, self._tokens)
        self._tokens = list(after)
        return output_logprobs(tokens)

    def _close(self, *, complete: bool = True) -> list[bytes]:
        """Return the events for the end of the open item, which is a complete call only if `complete`."""
        if self._open is None:
            return []
        if self._open == "tool_call":
            return self._close_call(complete=complete)
        text = "".join(self._text)
        item = self._item(text)
        events = [
            self._part_event(f"{self._prefix}.done", text=text, **self._with_logprobs(self._logprobs)),
            self._part_event("response.content_part.done", part=item["content"][0]),
            self._event("response.output_item.done", output_index=len(self._items), item=item),
        ]
        self._items.append(item)
        self._open = None
        return events

    def _item(self, text: str) -> Item:
        """Return the open item with a text."""
        if self._open == "tool_call":
            assert self._call is not None, "a call is open"
            piece = replace(self._call, arguments=text)
            return _call_item(self._head, len(self._items), piece, is_custom=self._is_custom)
        if self._open == "reasoning":
            return _reasoning_item(self._head, len(self._items), text)
        return _message_item(self._head, len(self._items), text, self._logprobs)

    @property
    def _prefix(self) -> str:
        return "response.reasoning_text" if self._open == "reasoning" else "response.output_text"

    def _with_logprobs(self, logprobs: Sequence[Item]) -> dict[str, Any]:
        return {} if self._open == "reasoning" else {"logprobs": list(logprobs)}

    def _added_event(self, item: Item) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._item("")["id"], "output_index": len(self._items), "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence_number += 1
        return named_event(kind, {"type": kind, "sequence_number": self._sequence_number - 1, **fields})
