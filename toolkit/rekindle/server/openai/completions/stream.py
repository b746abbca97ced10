"""Completions in chunks."""

from collections.abc import Sequence
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece, TokenLogprob
from rekindle.results.generation import Generation
from rekindle.server.common.errors import ApiError
from rekindle.server.common.events import EVENT_STREAM, Head, error_events
from rekindle.server.common.logprobs import TextLogprobs
from rekindle.server.openai.completions.answer import (
    KIND,
    Decode,
    count_added,
    echoed_scores,
    own_prompt,
    prompt_text,
)
from rekindle.server.openai.completions.body import CompletionRequest
from rekindle.server.openai.events import CompletionEvents, finish_reason, stop_reason


class CompletionChunks:
    """Writer of a completion as chunks.

    Args:
        head: the identity of the answer.
        request: the request to answer.
        records: the record of each choice's request.
        decode: the function from token ids to text.
    """

    content_type = EVENT_STREAM

    def __init__(self, head: Head, request: CompletionRequest, records: Sequence[Record], decode: Decode):
        self._request, self._decode = request, decode
        self._events = CompletionEvents(head, KIND, request.call, records)
        self._has_started = [False] * len(records)
        self._logprobs = [TextLogprobs(by_id=request.call.reports.by_id) for _ in records]

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        echo, scores, fields = self._start(choice, record)
        text = echo + piece.text
        self._events.tokens += len(piece.token_ids)
        if self._request.call.reports.ids:
            fields["token_ids"] = list(piece.token_ids)
        logprobs = None
        if self._request.logprobs is not None:
            logprobs = self._logprobs[choice].of([*scores, *(piece.logprobs or ())])
        if not (text or fields or logprobs):
            return []
        entry = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": None, **fields}
        return [self._events.chunk(entry)]

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        echo, scores, fields = self._start(choice, record)
        logprobs = self._logprobs[choice].of(scores) if scores else None
        entry = {"index": choice, "text": echo, "logprobs": logprobs, "finish_reason": finish_reason(generation)}
        return [self._events.chunk({**entry, **fields, "stop_reason": stop_reason(generation, self._request.call)})]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        return self._events.last(generations)

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return error_events(error)

    def _start(self, choice: int, record: Record) -> tuple[str, list[TokenLogprob], dict[str, Any]]:
        """Return the echoed prompt, its log-probabilities, and its report; nothing after the first call."""
        if self._has_started[choice]:
            return "", [], {}
        self._has_started[choice] = True
        request, ids = self._request, record.prompt_token_ids
        fields = {"prompt_token_ids": list(ids)} if request.call.reports.ids else {}
        if not request.echo:
            return "", [], fields
        prompt, scores = own_prompt(request, choice, ids), []
        if request.logprobs is not None:
            scores = echoed_scores(ids, record.prompt_logprobs, self._decode)
            self._logprobs[choice] = TextLogprobs(count_added(scores, prompt), by_id=request.call.reports.by_id)
        return prompt_text(prompt, self._decode), scores, fields
