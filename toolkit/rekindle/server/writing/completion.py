"""Completions, complete and in chunks."""

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece, TokenLogprob
from rekindle.results.generation import Generation
from rekindle.server.errors import ApiError
from rekindle.server.reading.completion import CompletionRequest, Text
from rekindle.server.writing.common import (
    EVENT_STREAM,
    CompletionEvents,
    Head,
    error_events,
    finish_reason,
    stop_reason,
    usage,
)
from rekindle.server.writing.logprobs import TextLogprobs, prompt_scores

Decode = Callable[[Sequence[int]], str]
"""Function from token ids to their text."""
KIND = "text_completion"


def completion(
    head: Head, generations: Sequence[Generation], request: CompletionRequest, decode: Decode
) -> dict[str, Any]:
    """Return a completion with a choice for each generation."""
    choices = [_choice(index, each, request, decode) for index, each in enumerate(generations)]
    return {**head.of(KIND), "choices": choices, "usage": usage(generations, request.call.choices)}


def _choice(index: int, generation: Generation, request: CompletionRequest, decode: Decode) -> dict[str, Any]:
    text, logprobs = generation.text, None
    own = _own_prompt(request, index, generation.prompt_token_ids)
    if request.logprobs is not None:
        prompt = []
        if request.echo:
            prompt = _prompt_scores(generation.prompt_token_ids, generation.prompt_logprobs or (), decode)
        writer = TextLogprobs(_count_added(prompt, own), by_id=request.call.reports.by_id)
        logprobs = writer.of([*prompt, *(generation.logprobs or ())])
    if request.echo:
        text = prompt_text(own, decode) + text
    reports = request.call.reports
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason(generation),
        "stop_reason": stop_reason(generation, request.call),
        "prompt_logprobs": prompt_scores(generation.prompt_logprobs or ()) if reports.prompt else None,
        "prompt_token_ids": list(generation.prompt_token_ids) if reports.ids else None,
        "token_ids": list(generation.token_ids) if reports.ids else None,
    }


def _own_prompt(request: CompletionRequest, choice: int, token_ids: Sequence[int]) -> Text:
    """Return the prompt of a choice to echo: as in the body, or the token ids in use if it may have been cut."""
    return request.prompts[choice] if request.call.options.get("truncate_prompt_tokens") is None else list(token_ids)


def prompt_text(prompt: Text, decode: Decode) -> str:
    """Return the text of a prompt."""
    return prompt if isinstance(prompt, str) else decode(prompt)


def _count_added(tokens: Sequence[TokenLogprob], prompt: Text) -> int:
    """Count the leading tokens added by the tokenizer to the prompt's text, e.g. BOS."""
    if not isinstance(prompt, str):
        return 0
    count = 0
    while count < len(tokens) and not prompt.startswith(tokens[count].text):
        count += 1
    return count if count < len(tokens) else 0


def _prompt_scores(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], decode: Decode
) -> list[TokenLogprob]:
    """Return the log-probabilities of an echoed prompt; NaN for the first token, which has none."""
    scores = []
    for token, logprob in zip(token_ids, logprobs, strict=True):
        if logprob is None:
            text = decode([token])
            logprob = TokenLogprob(token, text, nan, 0, bytes=text.encode())
        scores.append(logprob)
    return scores


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
        prompt, scores = _own_prompt(request, choice, ids), []
        if request.logprobs is not None:
            scores = _prompt_scores(ids, record.prompt_logprobs, self._decode)
            self._logprobs[choice] = TextLogprobs(_count_added(scores, prompt), by_id=request.call.reports.by_id)
        return prompt_text(prompt, self._decode), scores, fields
