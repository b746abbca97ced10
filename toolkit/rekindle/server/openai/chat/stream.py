"""Chat completions in chunks."""

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece
from rekindle.formats.response import CallPiece, Part
from rekindle.results.generation import Generation
from rekindle.server.common.answer import AnswerParts
from rekindle.server.common.errors import ApiError
from rekindle.server.common.events import EVENT_STREAM, Head, error_events
from rekindle.server.common.logprobs import chat_logprobs
from rekindle.server.openai.chat.answer import call_object
from rekindle.server.openai.chat.body import ChatRequest
from rekindle.server.openai.events import CompletionEvents, finish_reason, stop_reason


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
        entries = [_choice_object(choice, delta) for delta in writer.finish(record)]
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


class _ChoiceChunks:
    """Writer of one choice's deltas."""

    def __init__(self, request: ChatRequest):
        self._request = request
        self._has_started = False
        self._parts = AnswerParts(request.call, one_call=request.one_call, custom=request.custom)
        self._numbers: dict[str, int] = {}  # the number of each call by id

    @property
    def calls(self) -> int:
        """The number of complete tool calls so far."""
        return self._parts.calls

    def push(self, piece: Piece, record: Record) -> list[tuple[dict[str, Any], Any]]:
        """Return the deltas of a piece with their log-probabilities; the last delta has those of the whole piece."""
        deltas = self._first_deltas() + self._deltas(self._parts.push(piece, record))
        if not self._request.logprobs:
            return [(delta, None) for delta in deltas]
        logprobs = chat_logprobs(piece.logprobs or (), by_id=self._request.call.reports.by_id)
        deltas = deltas or [{"content": ""}]
        return [*((delta, None) for delta in deltas[:-1]), (deltas[-1], logprobs)]

    def finish(self, record: Record) -> list[dict[str, Any]]:
        """Return the deltas for the end of the output."""
        return self._first_deltas() + self._deltas(self._parts.finish(record))

    def _first_deltas(self) -> list[dict[str, Any]]:
        """Return the deltas before all others; none after the first call."""
        if self._has_started:
            return []
        self._has_started = True
        echo = [{"content": self._request.echo}] if self._request.echo else []
        return [
            {"role": "assistant", "content": None},
            *echo,
        ]  # as in llama.cpp: some of its clients take no empty text

    def _deltas(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if part.kind == "reasoning":
                keys = self._request.reasoning_keys
                deltas += [dict.fromkeys(keys, part.text)] if keys else []
            elif part.kind == "content":
                deltas.append({"content": part.text})
            else:
                deltas += map(self._call_delta, part.pieces)
        return deltas

    def _call_delta(self, piece: CallPiece) -> dict[str, Any]:
        if piece.id in self._numbers:
            function = {"arguments": piece.arguments}
            return {"tool_calls": [{"index": self._numbers[piece.id], "function": function}]}
        index = self._numbers[piece.id] = len(self._numbers)
        is_custom = piece.name in self._request.custom
        call = call_object(piece.id, piece.name, piece.arguments, is_custom=is_custom)
        return {"tool_calls": [{"index": index, **call}]}
