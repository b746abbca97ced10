"""Completions of texts, as a whole and in chunks."""

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from rekindle.client.record import Record
from rekindle.core.request.tokens import Piece, TokenLogprob
from rekindle.results.generation import Generation
from rekindle.server.reading.completion import CompletionCall, Text
from rekindle.server.refused import Refused
from rekindle.server.writing.common import DONE, Head, event, failed, finish_reason, usage, usage_so_far
from rekindle.server.writing.logprobs import TextLogprobs

Decode = Callable[[Sequence[int]], str]
"""Returns the text of token ids."""
KIND = "text_completion"


def completion(head: Head, generations: Sequence[Generation], asked: CompletionCall, decode: Decode) -> dict[str, Any]:
    """Return a completion with a choice for each generation."""
    choices = [_choice(index, each, asked, decode) for index, each in enumerate(generations)]
    return {**head.of(KIND), "choices": choices, "usage": usage(generations, asked.call.draws)}


def _choice(index: int, generation: Generation, asked: CompletionCall, decode: Decode) -> dict[str, Any]:
    text, logprobs = generation.text, None
    if asked.logprobs is not None:
        scored = _scored_prompt(generation, asked, decode)
        written = TextLogprobs(_unwritten(scored, asked.prompts[index]), by_id=asked.by_id)
        logprobs = written.of([*scored, *(generation.logprobs or ())])
    if asked.echo:
        text = echoed(asked.prompts[index], decode) + text
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason(generation)}


def echoed(prompt: Text, decode: Decode) -> str:
    """Return a prompt as a text."""
    return prompt if isinstance(prompt, str) else decode(prompt)


def _unwritten(scored: Sequence[TokenLogprob], prompt: Text) -> int:
    """Count the first tokens of a prompt that the tokenizer has put before its text."""
    if not isinstance(prompt, str):
        return 0
    count = 0
    while count < len(scored) and not prompt.startswith(scored[count].text):
        count += 1
    return count if count < len(scored) else 0


def _scored_prompt(generation: Generation, asked: CompletionCall, decode: Decode) -> list[TokenLogprob]:
    """Return the tokens of a prompt that is given too; the first, which has no probability, has NaN."""
    if not asked.echo:
        return []
    scored = []
    for token, logprob in zip(generation.prompt_token_ids, generation.prompt_logprobs or (), strict=True):
        if logprob is None:
            text = decode([token])
            logprob = TokenLogprob(token, text, nan, 0, bytes=text.encode())
        scored.append(logprob)
    return scored


class CompletionChunks:
    """Writes a completion as chunks.

    Args:
        records: of the request of each choice.
    """

    def __init__(self, head: Head, asked: CompletionCall, records: Sequence[Record], decode: Decode):
        self._head, self._asked, self._records = head, asked, records
        self._before = [echoed(prompt, decode) if asked.echo else "" for prompt in asked.prompts]
        self._logprobs = [TextLogprobs(by_id=asked.by_id) for _ in records]

    def piece(self, choice: int, piece: Piece, record: Record) -> list[bytes]:
        """See `Chunks`."""
        text, self._before[choice] = self._before[choice] + piece.text, ""
        if self._asked.logprobs is not None:
            return [self._chunk(choice, text, None, self._logprobs[choice].of(piece.logprobs or ()))]
        return [self._chunk(choice, text, None, None)] if text else []

    def end(self, choice: int, generation: Generation, record: Record) -> list[bytes]:
        """See `Chunks`."""
        return [self._chunk(choice, self._before[choice], finish_reason(generation), None)]

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """See `Chunks`."""
        streaming = self._asked.call.streaming
        if streaming is None or not streaming.usage:
            return [DONE]
        said = usage(generations, self._asked.call.draws)
        return [event({**self._head.of(KIND), "choices": [], "usage": said}), DONE]

    def failed(self, why: Refused) -> bytes:
        """See `Chunks`."""
        return failed(why)

    def _chunk(self, index: int, text: str, reason: str | None, logprobs: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        chunk: dict[str, Any] = {**self._head.of(KIND), "choices": [choice]}
        streaming = self._asked.call.streaming
        if streaming is not None and streaming.each:
            chunk["usage"] = usage_so_far(self._records, self._asked.call.draws)
        return event(chunk)
