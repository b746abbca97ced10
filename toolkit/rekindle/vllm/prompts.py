"""Prompts, parameters and adapters of a call, one of each for every prompt."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final, TypeVar

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.rendering.chat import render
from rekindle.session.session import Session
from rekindle.vllm.lora.request import LoRARequest
from rekindle.vllm.sampling_params import SamplingParams

T = TypeVar("T")

_TO_LIST: Final = ("tolist", "to_pylist", "to_list")
"""Methods of arrays and columns of numpy, pandas, polars, pyarrow and torch that return Python's own values."""
_WITHOUT_EFFECT: Final = frozenset({"multi_modal_uuids", "type"})
"""Fields of vLLM's prompts that change no answer."""


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


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The form of conversations as prompts, by the arguments of `LLM.chat`.

    Attributes:
        template: the Jinja source of a chat template in place of the model's, or None.
        opens: whether the prompt ends with the start of an answer.
        continues: whether the last message is continued.
        tools: the tools.
        variables: further variables of the template.
    """

    template: str | None
    opens: bool
    continues: bool
    tools: Sequence[Any] | None
    variables: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        """Check the form."""
        if self.opens and self.continues:
            raise InvalidRequest("continue_final_message=True needs add_generation_prompt=False, as in vLLM")

    @property
    def _rendering(self) -> dict[str, Any]:
        closed = {} if self.opens or self.continues else {"add_generation_prompt": False}
        return {
            "tools": self.tools,
            "chat_template_kwargs": {**(self.variables or {}), **closed} or None,
            "continue_final_message": self.continues,
        }

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of `session.enqueue` for a conversation, or for its text with a template of its own."""
        return self._rendering if self.template is None else {"add_special_tokens": False}

    def render(self, session: Session, conversation: Sequence[Any]) -> str:
        """Return a conversation as text.

        Raises:
            InvalidRequest: the conversation is malformed, has images and a template of its own, or the template rejects
                it.
        """
        if self.template is None:
            return session.render(conversation, **self._rendering)
        if any(
            isinstance(part, Mapping) and part.get("type") == "image" for each in conversation for part in _parts(each)
        ):
            raise InvalidRequest("chat_template= has no place for images: open the LLM with this chat_template")
        tokenizer, options = session.tokenizer, self._rendering
        chat = session._requests.conversation(conversation, {"tools": self.tools})
        return render(
            chat.messages,
            self.template,
            tools=chat.tools or None,
            variables=options["chat_template_kwargs"],
            bos_token=None if tokenizer is None else tokenizer.bos_token,
            eos_token=None if tokenizer is None else tokenizer.eos_token,
            continue_final_message=self.continues,
        )


def _parts(message: Any) -> Sequence[Any]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, list) else ()


def texts_or_tokens(prompts: Any) -> list[str | list[int]]:
    """Return the prompts of a call: each a text, or token ids.

    Args:
        prompts: one prompt or several: a text, token ids, {"prompt": text} or {"prompt_token_ids": ids}. Several come
            as a list, an iterator, an array or a column of a table.

    Raises:
        InvalidRequest: a prompt has another form, or comes with images or a salt.
    """
    pairs = illustrated(prompts)
    for _, more in pairs:
        if more:
            raise InvalidRequest(f"this method takes texts and token ids, got a prompt with {', '.join(more)} too")
    return [content for content, _ in pairs]


def illustrated(prompts: Any) -> list[tuple[str | list[int], dict[str, Any]]]:
    """Return each prompt of a call with further keywords of `session.enqueue`: its images, and its salt of the cache.

    Args:
        prompts: see `texts_or_tokens`; images come as {"multi_modal_data": {"image": ...}}, one or several.

    Raises:
        InvalidRequest: a prompt has another form, or data other than images.
    """
    if isinstance(prompts, str | Mapping):
        return [_plain("the prompt", prompts)]
    values = values_of("prompts", prompts)
    if _is_tokens(values):
        return [_plain("the prompt", values)]
    return [_plain(f"prompt {place}", each) for place, each in enumerate(values)]


def conversations_in(messages: Any) -> list[list[Any]]:
    """Return the conversations of a call, one or several, with their images as parts of Rekindle.

    Raises:
        InvalidRequest: the value is no list of messages, and none of conversations.
    """
    values = values_of("messages", messages)
    several = [values] if values and all(isinstance(each, Mapping) for each in values) else values
    return [[_message(message) for message in values_of("each conversation", each)] for each in several]


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


def each_of(name: str, value: Any, kind: type[Any], count: int, default: T) -> list[T]:
    """Return a value of a kind for each of `count` prompts: the same, or those of a list; `default` for None.

    Raises:
        InvalidRequest: a value is of another kind, or the list has another length.
    """
    if value is None:
        return [default] * count
    if isinstance(value, kind):
        return [value] * count
    values = values_of(name, value)
    if wrong := [each for each in values if each is not None and not isinstance(each, kind)]:
        raise InvalidRequest(f"{name} must be of {kind.__name__}, or a list of them; got {preview(wrong[0])}")
    if len(values) != count:
        raise InvalidRequest(f"{name} must have one value, or one for each of {count} prompts; got {len(values)}")
    return [default if each is None else each for each in values]


def values_of(name: str, values: Any) -> list[Any]:
    """Return the values of a list, an iterator, an array or a column of a table.

    Raises:
        InvalidRequest: the value is a single one, or a whole table.
    """
    if hasattr(values, "columns"):
        raise InvalidRequest(f"{name} must be one column of a table, such as table['prompt'], got the whole table")
    for method in _TO_LIST:
        if callable(convert := getattr(values, method, None)):
            values = convert()
            break
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | bytearray | Mapping):
        raise InvalidRequest(f"{name} must be a list, an iterator, an array or a column, got {preview(values)}")
    return list(values)


def _is_tokens(values: Sequence[Any]) -> bool:
    """Return True for integers alone, at least one."""
    return bool(values) and all(isinstance(each, Integral) and not isinstance(each, bool) for each in values)


def _plain(place: str, prompt: Any) -> tuple[str | list[int], dict[str, Any]]:
    if not isinstance(prompt, Mapping):
        return _text_or_tokens(place, prompt), {}
    fields = {name: value for name, value in prompt.items() if value is not None and name not in _WITHOUT_EFFECT}
    tokens, text = fields.pop("prompt_token_ids", None), fields.pop("prompt", None)
    more = {"images": _images(fields.pop("multi_modal_data", {})), "cache_salt": fields.pop("cache_salt", "")}
    for name, value in fields.items():
        if not isinstance(value, Mapping) or value:
            raise InvalidRequest(
                f"{place} has {preview(name)}, which has no equivalent here; a prompt has prompt or prompt_token_ids, "
                "and perhaps multi_modal_data and cache_salt"
            )
    content = _text_or_tokens(place, text if tokens is None else tokens)
    return content, {name: value for name, value in more.items() if value}


def _images(data: Any) -> list[Any]:
    if not isinstance(data, Mapping):
        raise InvalidRequest(f"multi_modal_data must be a mapping, got {preview(data)}")
    others = [name for name in data if name != "image"]
    if others:
        raise InvalidRequest(f"multi_modal_data has images alone here, got {preview(others[0])} too")
    image = data.get("image")
    return [] if image is None else [*image] if isinstance(image, list | tuple) else [image]


def _text_or_tokens(place: str, prompt: Any) -> str | list[int]:
    if isinstance(prompt, str):
        return str(prompt)
    if isinstance(prompt, Iterable) and not isinstance(prompt, bytes | bytearray | Mapping):
        values = values_of(place, prompt)
        if not values or _is_tokens(values):
            return [int(each) for each in values]
    raise InvalidRequest(f"{place} must be a text or token ids, got {preview(prompt)}")
