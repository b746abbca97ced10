"""Chat completions, complete and in chunks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.checks import preview
from rekindle.core.request.tokens import Piece
from rekindle.core.text.response import CallPiece, Part, Reading, ToolCall
from rekindle.results.generation import Generation
from rekindle.server.errors import ApiError
from rekindle.server.reading.call import Call, TokenReports
from rekindle.server.reading.chat import ChatRequest
from rekindle.server.reading.tools.custom import INPUT, CustomTool
from rekindle.server.writing.common import (
    EVENT_STREAM,
    CompletionEvents,
    Head,
    error_events,
    finish_reason,
    stop_reason,
    usage,
)
from rekindle.server.writing.continuation import reading_of, without_continued
from rekindle.server.writing.logprobs import chat_logprobs, prompt_scores


def chat_completion(head: Head, generations: Sequence[Generation], request: ChatRequest) -> dict[str, Any]:
    """Return a chat completion with a choice for each generation."""
    new = [without_continued(each, request.call) for each in generations]
    choices = [_choice(index, each, request) for index, each in enumerate(new)]
    reports = _prompt_reports(generations[0], request.call.reports)
    totals = usage(generations, request.call.choices)
    return {**head.of("chat.completion"), "choices": choices, "usage": totals, **reports}


def _prompt_reports(generation: Generation, reports: TokenReports) -> dict[str, Any]:
    """Return the fields of vLLM about the prompt of a chat; null if not requested, as there."""
    return {
        "prompt_logprobs": prompt_scores(generation.prompt_logprobs or ()) if reports.prompt else None,
        "prompt_token_ids": list(generation.prompt_token_ids) if reports.ids else None,
    }


def _choice(index: int, generation: Generation, request: ChatRequest) -> dict[str, Any]:
    all_calls = check_inputs(generation.tool_calls, request.custom)
    calls = readable_calls(all_calls, request.one_call)
    content = request.echo + content_of(generation.content, all_calls, request.call)
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if generation.reasoning is not None:
        message |= dict.fromkeys(request.reasoning_keys, generation.reasoning)
    if calls:
        message["tool_calls"] = [tool_call_object(call, request.custom) for call in calls]
    reports, logprobs = request.call.reports, None
    if request.logprobs:
        logprobs = chat_logprobs(generation.logprobs or (), by_id=reports.by_id)
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(generation, has_calls=bool(calls)),
        "stop_reason": stop_reason(generation, request.call),
        "token_ids": list(generation.token_ids) if reports.ids else None,
    }


def readable_calls(calls: Sequence[ToolCall], one_call: bool) -> list[ToolCall]:
    """Return the calls without a parse error; only the first if `one_call`."""
    valid = [call for call in calls if call.error is None]
    return valid[:1] if one_call else valid


def content_of(text: str, calls: Sequence[ToolCall], request: Call) -> str:
    """Return the content of an answer: its text, and the calls with a parse error.

    It is empty if the answer must be a call: the rest of such an answer is the cut beginning of a further one.
    """
    return "" if request.needs_calls else text + "".join(call.text for call in calls if call.error is not None)


def check_inputs(calls: Sequence[ToolCall], custom: Mapping[str, CustomTool]) -> list[ToolCall]:
    """Return calls with an error for each custom tool whose input is absent or outside its grammar."""
    return [each if (error := _input_error(each, custom)) is None else replace(each, error=error) for each in calls]


def _input_error(call: ToolCall, custom: Mapping[str, CustomTool]) -> str | None:
    if call.error is not None or call.name not in custom:
        return call.error
    text = call.arguments.get(INPUT)
    if not isinstance(text, str):
        return f"expected the argument {INPUT}, got {preview(call.arguments, 200)}"
    return (
        None
        if custom[call.name].accepts(text)
        else f"expected an input of the tool's grammar, got {preview(text, 200)}"
    )


def call_text(call: ToolCall, custom: Mapping[str, CustomTool]) -> str:
    """Return the arguments of a call as JSON, or the input of a custom tool."""
    return str(call.arguments[INPUT]) if call.name in custom else json.dumps(call.arguments, ensure_ascii=False)


def tool_call_object(call: ToolCall, custom: Mapping[str, CustomTool]) -> dict[str, Any]:
    """Return a tool call with its arguments as JSON text, or with the input of a custom tool."""
    return _call_object(call.id, call.name, call_text(call, custom), is_custom=call.name in custom)


def _call_object(call_id: str, name: str, text: str, *, is_custom: bool) -> dict[str, Any]:
    kind, value = ("custom", "input") if is_custom else ("function", "arguments")
    return {"id": call_id, "type": kind, kind: {"name": name, value: text}}


class ChatChunks:
    """Writer of a chat completion as chunks.

    Args:
        head: the identity of the answer.
        request: the request to answer.
        records: the record of each choice's request.
    """

    content_type = EVENT_STREAM

    def __init__(self, head: Head, request: ChatRequest, records: Sequence[Record]):
        self._request = request
        self._events = CompletionEvents(head, "chat.completion.chunk", request.call, records)
        self._choices = [_ChoiceChunks(request) for _ in records]

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        with_ids, chunks = self._request.call.reports.ids, []
        deltas = self._choices[choice].push(piece, record)
        if with_ids and not deltas:
            deltas = [({"content": ""}, None)]
        for place, (delta, logprobs) in enumerate(deltas, 1):  # the last one has the tokens of the piece
            tokens = piece.token_ids if place == len(deltas) else ()
            self._events.tokens += len(tokens)
            entry = _choice_object(choice, delta, logprobs) | ({"token_ids": list(tokens)} if with_ids else {})
            prompt = {"prompt_token_ids": list(record.prompt_token_ids)} if with_ids and "role" in delta else {}
            chunks.append(self._events.chunk(entry, **prompt))
        self._events.tokens += 0 if deltas else len(piece.token_ids)
        return chunks

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        writer = self._choices[choice]
        entries = [_choice_object(choice, delta) for delta in writer.finish()]
        reason = finish_reason(generation, has_calls=writer.calls > 0)
        stop = stop_reason(generation, self._request.call)
        entries.append({**_choice_object(choice, {}), "finish_reason": reason, "stop_reason": stop})
        return [self._events.chunk(entry) for entry in entries]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        return self._events.last(generations)

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return error_events(error)


def _choice_object(index: int, delta: Mapping[str, Any], logprobs: Any = None) -> dict[str, Any]:
    """Return a part of an unfinished choice."""
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


class CallProgress:
    """The calls of a stream by pieces. A call in a format without pieces, or of a custom tool, is one piece.

    Args:
        one_call: whether only the first call counts.
        custom: the custom tools by name.

    Attributes:
        complete: the number of complete calls.
    """

    def __init__(self, *, one_call: bool, custom: Mapping[str, CustomTool]):
        self._one_call, self._custom = one_call, custom
        self._numbers: dict[str, int] = {}  # the number of each call by id
        self.complete = 0

    def take(self, part: Part) -> list[tuple[int, CallPiece, bool]]:
        """Return the pieces in a part to write: the number of the call, the piece, and whether it is the first."""
        call = self._checked(part.call)
        pieces: Sequence[CallPiece] = [piece for piece in part.pieces if piece.name not in self._custom]
        is_complete = call is not None and call.error is None
        if call is not None and is_complete and call.id not in self._numbers:
            pieces = [CallPiece(call.id, call.name, call_text(call, self._custom))]
        entries = []
        for piece in pieces:
            is_first = piece.id not in self._numbers
            if is_first and self._one_call and self._numbers:
                continue
            entries.append((self._numbers.setdefault(piece.id, len(self._numbers)), piece, is_first))
        self.complete += call is not None and is_complete and call.id in self._numbers
        return entries

    def text_of(self, part: Part, request: Call) -> str:
        """Return the content in a part: its text, or a malformed call without any piece written."""
        call = self._checked(part.call)
        calls = [] if call is None or call.id in self._numbers else [call]
        return content_of(part.text if part.kind == "content" else "", calls, request)

    def _checked(self, call: ToolCall | None) -> ToolCall | None:
        return None if call is None else check_inputs([call], self._custom)[0]


class _ChoiceChunks:
    """Writer of one choice's deltas."""

    def __init__(self, request: ChatRequest):
        self._request = request
        self._reading: Reading | None = None
        self._has_started = False
        self._progress = CallProgress(one_call=request.one_call, custom=request.custom)

    @property
    def calls(self) -> int:
        """The number of complete tool calls so far."""
        return self._progress.complete

    def push(self, piece: Piece, record: Record) -> list[tuple[dict[str, Any], Any]]:
        """Return the deltas of a piece with their log-probabilities; the last delta has those of the whole piece."""
        deltas: list[dict[str, Any]] = []
        if not self._has_started:
            self._has_started = True
            self._reading = reading_of(record, self._request.call)  # the prompt is tokenized by now
            deltas += self._first_deltas()
        if self._reading is not None:
            deltas += self._deltas(self._reading.push(piece.text, piece.token_ids))
        elif piece.text:
            deltas.append({"content": piece.text})
        if not self._request.logprobs:
            return [(delta, None) for delta in deltas]
        logprobs = chat_logprobs(piece.logprobs or (), by_id=self._request.call.reports.by_id)
        deltas = deltas or [{"content": ""}]
        return [*((delta, None) for delta in deltas[:-1]), (deltas[-1], logprobs)]

    def finish(self) -> list[dict[str, Any]]:
        """Return the deltas for the end of the output."""
        deltas = [] if self._has_started else self._first_deltas()
        return deltas + (self._deltas(self._reading.finish()[1]) if self._reading is not None else [])

    def _first_deltas(self) -> list[dict[str, Any]]:
        echo = [{"content": self._request.echo}] if self._request.echo else []
        return [
            {"role": "assistant", "content": None},
            *echo,
        ]  # as in llama.cpp, some of whose clients take no empty text

    def _deltas(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if part.kind == "reasoning":
                keys = self._request.reasoning_keys
                deltas += [dict.fromkeys(keys, part.text)] if keys else []
                continue
            deltas += [self._call_delta(*entry) for entry in self._progress.take(part)]
            text = self._progress.text_of(part, self._request.call)
            deltas += [{"content": text}] if text else []
        return deltas

    def _call_delta(self, index: int, piece: CallPiece, is_first: bool) -> dict[str, Any]:
        if not is_first:
            return {"tool_calls": [{"index": index, "function": {"arguments": piece.arguments}}]}
        is_custom = piece.name in self._request.custom
        call = _call_object(piece.id, piece.name, piece.arguments, is_custom=is_custom)
        return {"tool_calls": [{"index": index, **call}]}
