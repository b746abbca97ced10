"""Generations of a session as outputs of inspect-ai."""

from collections.abc import Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    Content,
    ContentReasoning,
    ContentText,
    Logprobs,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolCall

from rekindle.core.request.tokens import TokenLogprob
from rekindle.results.generation import Generation
from rekindle.server.common.logprobs import chat_logprobs


def output_of(model: str, generations: Sequence[Generation], max_tokens: int | None) -> ModelOutput:
    """Return the output with a choice for each generation.

    Args:
        model: the name of the model.
        generations: the answers to one prompt.
        max_tokens: the most tokens that an answer could have had; None for the rest of the context.
    """
    seeds = [each.seed for each in generations if each.seed is not None]
    return ModelOutput(
        model=model,
        choices=[_choice(model, each, max_tokens) for each in generations],
        usage=_usage(generations),
        metadata={"seeds": seeds} if seeds else None,
    )


def record_of(generation: Generation) -> dict[str, Any]:
    """Return a generation for the log of a call: its text, its tokens and its end."""
    names = ("text", "token_ids", "finish_reason", "stopped_by", "seed", "usage", "timings", "cached")
    record = generation.to_dict()
    return {name: record[name] for name in names}


def _choice(model: str, generation: Generation, max_tokens: int | None) -> ChatCompletionChoice:
    message = ChatMessageAssistant(
        content=_content(generation),
        tool_calls=[
            ToolCall(id=call.id, function=call.name or "unknown", arguments=call.arguments, parse_error=call.error)
            for call in generation.tool_calls
        ]
        or None,
        model=model,
        source="generate",
    )
    return ChatCompletionChoice(
        message=message,
        stop_reason=_stop_reason(generation, max_tokens),
        logprobs=_logprobs(generation.logprobs),
        prompt_logprobs=_logprobs(generation.prompt_logprobs),
    )


def _content(generation: Generation) -> str | list[Content]:
    """Return the content of a message: a text, or the reasoning and the text."""
    unreadable = "".join(call.text for call in generation.tool_calls if call.error is not None)
    text = generation.content + unreadable
    if generation.reasoning is None:
        return text
    return [ContentReasoning(reasoning=generation.reasoning), ContentText(text=text)]


def _stop_reason(generation: Generation, max_tokens: int | None) -> str:
    match generation.finish_reason:
        case "stop":
            return "tool_calls" if generation.tool_calls else "stop"
        case "length":
            is_cut = max_tokens is not None and generation.usage.completion_tokens >= max_tokens
            return "max_tokens" if is_cut else "model_length"
    return "unknown"  # inspect-ai has no word for a repetition


def _logprobs(tokens: Sequence[TokenLogprob | None] | None) -> Logprobs | None:
    """Return the log-probabilities of tokens; the first token of a prompt has none."""
    if tokens is None:
        return None
    content = chat_logprobs([token for token in tokens if token is not None])["content"]
    return Logprobs(content=[{**each, "top_logprobs": each["top_logprobs"] or None} for each in content])


def _usage(generations: Sequence[Generation]) -> ModelUsage:
    """Return the usage of a call; its prompt counts once for all its choices."""
    prompt, cached = generations[0].usage.prompt_tokens, generations[0].cached_tokens
    generated = sum(each.usage.completion_tokens for each in generations)
    return ModelUsage(
        input_tokens=prompt - cached,
        input_tokens_cache_read=cached,
        output_tokens=generated,
        total_tokens=prompt + generated,
        reasoning_tokens=sum(each.usage.reasoning_tokens for each in generations),
    )
