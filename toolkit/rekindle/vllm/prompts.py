"""Prompts, parameters and adapters of a call, one of each for every prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.vllm.params import LoRARequest, SamplingParams

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt with its parameters.

    Attributes:
        prompt: a text, token ids or a conversation.
        text: the prompt of the result; None for token ids.
        keywords: the keywords of `session.enqueue` for the prompt.
        params: the sampling parameters.
        lora: the adapter.
        priority: the place in the queue.
    """

    prompt: Any
    text: str | None
    keywords: Mapping[str, Any]
    params: SamplingParams
    lora: LoRARequest | None
    priority: int


def texts_or_tokens(prompts: Any) -> list[str | list[int]]:
    """Return the prompts of a call: each a text, or token ids.

    Args:
        prompts: one prompt or several: a text, token ids, {"prompt": text} or {"prompt_token_ids": ids}.

    Raises:
        InvalidRequest: a prompt has another form.
    """
    is_one = isinstance(prompts, str | Mapping) or (bool(prompts) and all(isinstance(each, int) for each in prompts))
    return [_plain(each) for each in ([prompts] if is_one else prompts)]


def conversations_in(messages: Sequence[Any]) -> list[list[Any]]:
    """Return the conversations of a call: one, or several."""
    return [list(messages)] if messages and isinstance(messages[0], Mapping) else [list(each) for each in messages]


def each_of(name: str, value: T | Sequence[T] | None, count: int, default: T) -> list[T]:
    """Return a value for each of `count` prompts: the same, or those of a list.

    Raises:
        InvalidRequest: the list has another length.
    """
    if value is None:
        return [default] * count
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise InvalidRequest(f"{name} must have one value, or one for each of {count} prompts; got {len(value)}")
    return list(value)


def _plain(prompt: Any) -> str | list[int]:
    if isinstance(prompt, Mapping):
        extra = [name for name in prompt if name not in ("prompt", "prompt_token_ids")]
        if extra:
            raise InvalidRequest(f"a prompt has prompt or prompt_token_ids here, got {preview(extra[0])} too")
        prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt.get("prompt")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and all(isinstance(each, int) for each in prompt):
        return list(prompt)
    raise InvalidRequest(f"a prompt must be a text or token ids, got {preview(prompt)}")
