"""Messages and models of Anthropic's API."""

from collections.abc import Sequence
from typing import Any

from rekindle.results.generation import Generation
from rekindle.server.anthropic.body import MessagesRequest
from rekindle.server.common.answer import Answer
from rekindle.server.common.events import Head, timestamp

Block = dict[str, Any]


def message_object(head: Head, generation: Generation, request: MessagesRequest) -> dict[str, Any]:
    """Return the message for a generation."""
    answer = Answer.of(generation, request.call, one_call=request.one_call)
    blocks: list[Block] = []
    if answer.reasoning is not None:
        text = answer.reasoning if request.shows_thinking else ""
        blocks.append({"type": "thinking", "thinking": text, "signature": signature_of(head)})
    if answer.content or not (blocks or answer.calls):
        blocks.append({"type": "text", "text": answer.content})
    for call in answer.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments})
    end = end_of(generation, request, bool(answer.calls))
    return {**empty_message(head), "content": blocks, **end, "usage": usage_of(generation)}


def empty_message(head: Head) -> dict[str, Any]:
    start = {"id": head.id, "type": "message", "role": "assistant", "model": head.model, "content": []}
    return {**start, "stop_reason": None, "stop_sequence": None}


def end_of(generation: Generation, request: MessagesRequest, has_calls: bool) -> dict[str, Any]:
    """Return the reason for the end of a message, and its stop sequence if one ended it."""
    if has_calls and request.one_call:  # what was cut are further calls, left out of the message
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if generation.finish_reason == "length":
        full = generation.usage.completion_tokens < request.call.options["max_tokens"]
        return {"stop_reason": "model_context_window_exceeded" if full else "max_tokens", "stop_sequence": None}
    if has_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(generation.stopped_by, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": generation.stopped_by}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def usage_of(generation: Generation) -> dict[str, Any]:
    counts, cached = generation.usage, generation.cached_tokens
    return {
        **input_usage(counts.prompt_tokens, cached),
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"thinking_tokens": counts.reasoning_tokens},
    }


def input_usage(prompt: int, cached: int) -> dict[str, int]:
    """Return the usage of a prompt, in parts with its number of tokens as their sum."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def signature_of(head: Head) -> str:
    """Return the signature of thinking. Clients send it back, and the server does not check it."""
    return head.id


def model_object(name: str, since: int, longest: int | None) -> dict[str, Any]:
    """Return the object describing a model.

    Args:
        name: its name for clients.
        since: the start of its service, in seconds since 1970.
        longest: the tokens of its context; None while it is closed.
    """
    limits = {"max_input_tokens": longest, "max_tokens": longest}
    return {"type": "model", "id": name, "display_name": name, "created_at": timestamp(since), **limits}


def models_page(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the list of all models, in one page."""
    names = [model["id"] for model in models] or [None]
    return {"data": list(models), "has_more": False, "first_id": names[0], "last_id": names[-1]}
