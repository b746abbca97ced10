"""The usage and the events of completions and chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.client.record import Record
from rekindle.results.generation import Generation
from rekindle.server.common.call import Call
from rekindle.server.common.events import COMMENT, DONE, EVENT_STREAM, Head, StreamForm, error_events, event

COMPLETIONS: Final = StreamForm(EVENT_STREAM, COMMENT, error_events)
"""The form of the streams of completions and chat completions."""


class CompletionEvents:
    """Events of a completion or a chat completion: its chunks, with the usage on demand, and its end.

    Args:
        head: the identity of the answer.
        kind: the kind of each chunk.
        call: the call of the session.
        records: the record of each choice's request.

    Attributes:
        tokens: the number of generated tokens so far.
    """

    def __init__(self, head: Head, kind: str, call: Call, records: Sequence[Record]):
        self._head, self._call, self._records = head.of(kind), call, records
        self.tokens = 0

    def chunk(self, choice: Mapping[str, Any], **fields: Any) -> bytes:
        """Return the event of a chunk with a part of a choice, and further fields."""
        chunk: dict[str, Any] = {**self._head, "choices": [choice], **fields}
        streaming = self._call.streaming
        if streaming is not None and streaming.continuous:
            chunk["usage"] = usage_so_far(self._records, self._call.choices, self.tokens)
        return event(chunk)

    def last(self, generations: Sequence[Generation]) -> list[bytes]:
        """Return the last events: the usage if the body asks for it, and the mark of the end."""
        streaming = self._call.streaming
        if streaming is None or not streaming.usage:
            return [DONE]
        return [event({**self._head, "choices": [], "usage": usage(generations, self._call.choices)}), DONE]


def usage(generations: Sequence[Generation], choices: int) -> dict[str, Any]:
    """Return the token usage of an answer; a prompt counts once for all its choices."""
    prompts = generations[::choices]
    generated = sum(each.usage.completion_tokens for each in generations)
    images = sum(each.usage.image_tokens for each in prompts)
    return {
        **usage_of(sum(each.usage.prompt_tokens for each in prompts), generated),
        "prompt_tokens_details": {
            "cached_tokens": sum(each.cached_tokens for each in prompts),
            **({"image_tokens": images} if images else {}),
        },
        "completion_tokens_details": {"reasoning_tokens": sum(each.usage.reasoning_tokens for each in generations)},
    }


def usage_so_far(records: Sequence[Record], choices: int, generated: int) -> dict[str, Any]:
    """Return the token usage of an unfinished answer after `generated` tokens, without the details of `usage`."""
    return usage_of(sum(len(record.prompt_token_ids) for record in records[::choices]), generated)


def usage_of(prompt: int, generated: int) -> dict[str, Any]:
    """Return the usage object for these numbers of tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def stop_reason(generation: Generation, call: Call) -> str | int | None:
    """Return vLLM's stop reason: the stop string or token of the request that ended an answer, else None.

    The end token of the tokenizer is none, also among the stop tokens.
    """
    if generation.finish_reason == "repetition":
        return "repetition_detected"  # as in vLLM
    by = generation.stopped_by
    if by is not None and by == call.end and not call.options.get("ignore_eos"):
        return None
    stops = call.options.get("stop_token_ids") or ()
    return by if isinstance(by, str) or by in ([stops] if isinstance(stops, int) else stops) else None


def finish_reason(generation: Generation, has_calls: bool = False) -> str:
    """Return OpenAI's finish reason: "length" for a cut answer, else "tool_calls" or "stop"."""
    if generation.finish_reason == "repetition":
        return "repetition"  # as in vLLM
    if generation.finish_reason == "length":
        return "length"
    return "tool_calls" if has_calls else "stop"
