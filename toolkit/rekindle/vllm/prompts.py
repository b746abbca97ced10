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
    return [_plain(each) for each in _each(prompts)]


def illustrated(prompts: Any) -> list[tuple[str | list[int], list[Any]]]:
    """Return the prompts of a call with their images, given as {"multi_modal_data": {"image": ...}}, one or several.

    Args:
        prompts: see `texts_or_tokens`.

    Raises:
        InvalidRequest: a prompt has another form, or data other than images.
    """
    pairs = []
    for prompt in _each(prompts):
        images: list[Any] = []
        if isinstance(prompt, Mapping) and (data := prompt.get("multi_modal_data")):
            others = [name for name in data if name != "image"]
            if others:
                raise InvalidRequest(f"multi_modal_data has images alone here, got {preview(others[0])} too")
            images = [*data["image"]] if isinstance(data["image"], list | tuple) else [data["image"]]
        if isinstance(prompt, Mapping):
            prompt = {name: value for name, value in prompt.items() if name != "multi_modal_data"}
        pairs.append((_plain(prompt), images))
    return pairs


def conversations_in(messages: Sequence[Any]) -> list[list[Any]]:
    """Return the conversations of a call, one or several, with their images as parts of Rekindle."""
    several = [messages] if messages and isinstance(messages[0], Mapping) else messages
    return [[_message(message) for message in each] for each in several]


def _message(message: Any) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    return {**message, "content": [_part(part) for part in content]} if isinstance(content, list) else message


def _part(part: Any) -> Any:
    """Return a part of a message; an image by its URL or as an object becomes an image."""
    match part:
        case {"type": "image_url", "image_url": {"url": url}} | {"type": "image_url", "image_url": str(url)}:
            return {"type": "image", "image": url}
        case {"type": "image_pil", "image_pil": image}:
            return {"type": "image", "image": image}
    return part


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


def _each(prompts: Any) -> Sequence[Any]:
    is_one = isinstance(prompts, str | Mapping) or (bool(prompts) and all(isinstance(each, int) for each in prompts))
    return [prompts] if is_one else prompts


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
