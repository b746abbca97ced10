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
    DONE,
    EVENT_STREAM,
    Head,
    error_events,
    event,
    finish_reason,
    usage,
    usage_so_far,
)
from rekindle.server.writing.logprobs import TextLogprobs

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
    if request.logprobs is not None:
        prompt = _prompt_logprobs(generation, request, decode)
        writer = TextLogprobs(_count_added(prompt, request.prompts[index]), by_id=request.by_id)
        logprobs = writer.of([*prompt, *(generation.logprobs or ())])
    if request.echo:
        text = prompt_text(request.prompts[index], decode) + text
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason(generation)}


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


def _prompt_logprobs(generation: Generation, request: CompletionRequest, decode: Decode) -> list[TokenLogprob]:
    """Return the log-probabilities of an echoed prompt; NaN for the first token, which has none."""
    if not request.echo:
        return []
    logprobs = []
    for token, logprob in zip(generation.prompt_token_ids, generation.prompt_logprobs or (), strict=True):
        if logprob is None:
            text = decode([token])
            logprob = TokenLogprob(token, text, nan, 0, bytes=text.encode())
        logprobs.append(logprob)
    return logprobs


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
        self._head, self._request, self._records = head, request, records
        self._pending_echo = [prompt_text(prompt, decode) if request.echo else "" for prompt in request.prompts]
        self._logprobs = [TextLogprobs(by_id=request.by_id) for _ in records]

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        text, self._pending_echo[choice] = self._pending_echo[choice] + piece.text, ""
        if self._request.logprobs is not None:
            return [self._chunk(choice, text, None, self._logprobs[choice].of(piece.logprobs or ()))]
        return [self._chunk(choice, text, None, None)] if text else []

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        return [self._chunk(choice, self._pending_echo[choice], finish_reason(generation), None)]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        streaming = self._request.call.streaming
        if streaming is None or not streaming.usage:
            return [DONE]
        totals = usage(generations, self._request.call.choices)
        return [event({**self._head.of(KIND), "choices": [], "usage": totals}), DONE]

    def error_event(self, error: ApiError) -> bytes:
        """See `Chunks`."""
        return error_events(error)

    def _chunk(self, index: int, text: str, reason: str | None, logprobs: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        chunk: dict[str, Any] = {**self._head.of(KIND), "choices": [choice]}
        streaming = self._request.call.streaming
        if streaming is not None and streaming.continuous:
            chunk["usage"] = usage_so_far(self._records, self._request.call.choices)
        return event(chunk)
