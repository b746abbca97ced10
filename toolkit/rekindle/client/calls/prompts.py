"""Prompts of calls in all accepted forms: text, conversations and token ids."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from pathlib import PurePath
from typing import Any

from rekindle.client.calls.images import with_images, with_sources
from rekindle.client.calls.options import PromptOptions, ToolSchemas
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Continued, Conversation, Illustrated, KnownTokens, PicturedTokens, Prompt, Verbatim
from rekindle.core.request.checks import boolean, preview
from rekindle.core.request.request import check_token_ids
from rekindle.formats.rendering.chat import (
    append_text,
    check_continuable,
    check_messages,
    check_variables,
    copy_messages,
)
from rekindle.results.answer_table import PromptLabel
from rekindle.tools.tool import schemas_of


def all_prompts(
    prompt: Any, options: PromptOptions[Any], vocab_size: int, takes_empty: bool = False
) -> tuple[list[Prompt | InvalidRequest], bool]:
    """Return the checked prompts of a call, and whether the call is a batch. In a batch, errors replace bad prompts.

    Args:
        prompt: a prompt (see `OnePrompt`) or a list of prompts.
        options: see `PromptOptions`.
        vocab_size: the exclusive upper bound of token ids.
        takes_empty: whether a text may be empty, as an encoder has special tokens around each text.

    Raises:
        InvalidRequest: a single prompt is empty, has an unsupported type, or is not a conversation although tools or
            template variables were passed; both or neither of prompt and token ids were passed; or tools or variables
            are malformed.
    """
    token_ids, extras = options.get("token_ids"), _extras(options)
    if prompt is None and token_ids is None:
        raise InvalidRequest("the prompt is None; give a text, a list of messages, a list of either, or token_ids=")
    if prompt is not None and token_ids is not None:
        raise InvalidRequest("give either a prompt or token_ids, and not both")
    images = options.get("images")
    if token_ids is not None:
        if images:
            raise InvalidRequest.of("images", "images need a prompt of text or messages, and this call has token_ids")
        batch = _is_list(token_ids) and len(token_ids) > 0 and all(_is_list(ids) for ids in token_ids)
        return each_of(token_ids if batch else [token_ids], partial(_ids, extras, vocab_size), batch), batch
    batch = _is_list(prompt) and not (len(prompt) and isinstance(prompt[0], Mapping))
    prompts = each_of(prompt if batch else [prompt], partial(_text_or_chat, extras, takes_empty), batch)
    return prompts if images is None else _illustrated(prompts, images, batch), batch


def is_chat(prompt: Any) -> bool:
    """Return True for the messages of a conversation, and for a list that begins with one."""
    first: Any = prompt[0] if _is_list(prompt) and len(prompt) else None
    return isinstance(first, Mapping) or (_is_list(first) and len(first) > 0 and isinstance(first[0], Mapping))


def _illustrated(prompts: Sequence[Prompt | InvalidRequest], images: Any, batch: bool) -> list[Prompt | InvalidRequest]:
    """Return prompts with images; a batch has a list of them for each prompt."""
    of_each = images if batch else [images]
    if not _is_list(of_each) or len(of_each) != len(prompts):
        raise InvalidRequest.of(
            "images", f"images must be a list with the images of each of {len(prompts)} prompts, got {preview(images)}"
        )
    pairs = [
        each if isinstance(each, InvalidRequest) else (each, own) for each, own in zip(prompts, of_each, strict=True)
    ]
    return each_of(pairs, lambda pair: with_images(pair[0], pair[1] or []), batch)


def each_of(items: Iterable[Any], make: Callable[[Any], Prompt], batch: bool) -> list[Prompt | InvalidRequest]:
    """Return `make(item)` for each item; in a batch, the error of a failing item replaces its prompt.

    Args:
        items: the items; an item may be the error of an earlier step, which is returned unchanged.
        make: returns the prompt of an item, or raises InvalidRequest.
        batch: whether the call is a batch.

    Raises:
        InvalidRequest: `make` failed, and the call is not a batch.
    """
    prompts: list[Prompt | InvalidRequest] = []
    for item in items:
        try:
            prompts.append(item if isinstance(item, InvalidRequest) else make(item))
        except InvalidRequest as error:
            if not batch:
                raise
            prompts.append(error)
    return prompts


def one_chat(messages: Any, options: PromptOptions[Any]) -> Conversation:
    """Return the conversation of a call for a single conversation.

    Raises:
        InvalidRequest: `messages` is not a conversation, or the tools or variables are malformed.
    """
    if isinstance(messages, str) or not _is_list(messages):
        raise InvalidRequest(f"messages must be a list of {{role, content}} mappings, got {preview(messages)}")
    return _chat(messages, _extras(options))


def one_prompt(prompts: Sequence[Prompt | Exception], batch: bool) -> Prompt:
    """Return the prompt of a call for a single prompt.

    Raises:
        InvalidRequest: the call is a batch.
    """
    if batch:
        raise InvalidRequest(f"one prompt was expected, got a list of {len(prompts)}; use generate() for a batch")
    (prompt,) = prompts
    assert not isinstance(prompt, Exception), "errors replace prompts only in batches"
    return prompt


def prefix_prompt(prefix: Prompt, options: PromptOptions[Any]) -> Prompt:
    """Return the prompt of a call that generates from a prefix alone, with its `continue_final_message`.

    Raises:
        InvalidRequest: `continue_final_message` was set, and the prefix is not a conversation, or its last message has
            no content.
    """
    extras = _extras(options)
    if not extras.continues_last:
        return prefix
    if not isinstance(prefix, Conversation):
        raise _no_chat(prefix, "continue_final_message=")
    check_continuable(prefix.messages, prefix.variables)
    return replace(prefix, continue_final_message=True)


def unanswered(prompt: Prompt) -> Prompt:
    """Return a prompt for no answer: a conversation is rendered without the template's start of one, by default."""
    if isinstance(prompt, Conversation):
        return replace(prompt, variables={"add_generation_prompt": False, **prompt.variables})
    return prompt


def continuation(prefix: Prompt, more: Prompt) -> Prompt:
    """Return a prefix followed by another prompt.

    Text after a conversation is a user message, or the continuation of its last message if `continue_final_message` was
    set for the prefix.

    Raises:
        InvalidRequest: messages follow text or token ids, or token ids follow messages.
    """
    match prefix, more:
        case Conversation(continue_final_message=True), str():
            return replace(prefix, messages=append_text(prefix.messages, more))
        case Conversation(), str():
            return replace(prefix, messages=[*prefix.messages, {"role": "user", "content": more}])
        case Conversation(), Conversation():
            messages = [*prefix.messages, *more.messages]
            return replace(prefix, messages=messages, continue_final_message=more.continue_final_message)
        case Conversation(), _:
            raise InvalidRequest("token ids cannot follow messages; give messages, or a str for a user message")
        case _, Conversation():
            raise InvalidRequest("messages cannot follow text or token ids; give a str or token_ids")
    return Continued(prefix, more)


def tools_in(prompt: Prompt | Exception) -> ToolSchemas | None:
    """Return the tools of a conversation; None if the prompt is not a conversation."""
    match prompt:
        case Conversation(tools=tools):
            return tools or ()
        case Continued(prefix=prefix):
            return tools_in(prefix)
    return None


def names_of(tools: ToolSchemas) -> tuple[str, ...]:
    """Return the names of tools."""
    functions = (tool.get("function", tool) for tool in tools)
    return tuple(str(function["name"]) for function in functions if "name" in function)


def as_text(prompt: Prompt) -> str:
    """Return a prompt as readable text: one line per message, token ids as numbers."""
    match prompt:
        case str():
            return prompt
        case Illustrated():
            return prompt.text
        case PicturedTokens() | KnownTokens():
            return " ".join(map(str, prompt.ids))
        case Conversation():
            return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt.messages)
        case Continued():
            return f"{as_text(prompt.prefix)}{as_text(prompt.more)}"
    return " ".join(map(str, prompt))


def label_of(prompt: Prompt | Exception, value: Any) -> PromptLabel:
    """Return the label of a prompt for tables: its text or token ids, or the last user message of a conversation.

    Args:
        prompt: the checked prompt, or the error of a bad one.
        value: the caller's value for the prompt.
    """
    match prompt:
        case Conversation(messages):
            users = [message for message in messages if message.get("role") == "user"]
            content = (users or messages)[-1].get("content") or ""
            return content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)
        case Continued():
            return label_of(prompt.more, value)
        case Illustrated():
            return prompt.text
        case PicturedTokens() | KnownTokens():
            return prompt.ids
        case Exception():
            return value if isinstance(value, str) else preview(value)
    return prompt


def text_of(prompt: Prompt) -> str | None:
    """Return the label of a prompt for its card; None for token ids."""
    label = label_of(prompt, None)
    return str(label) if isinstance(label, str) else None


@dataclass(frozen=True, slots=True)
class _Extras:
    """Checked prompt options of a call.

    Attributes:
        tools: the JSON schemas of the tools; None without tools in the prompt.
        variables: the variables of the chat template.
        continues_last: whether the model continues the last message.
        adds_special: whether the tokenizer adds its special tokens to text.
    """

    tools: list[Mapping[str, Any]] | None
    variables: dict[str, Any]
    continues_last: bool
    adds_special: bool

    @property
    def chat_option(self) -> str:
        """Name of a passed option for conversations, for error messages; empty if none was passed."""
        if self.tools is not None:
            return "tools="
        return "chat_template_kwargs=" if self.variables else "continue_final_message=" if self.continues_last else ""


def _extras(options: PromptOptions[Any]) -> _Extras:
    functions, variables = options.get("tools"), options.get("chat_template_kwargs")
    tools = None if functions is None else schemas_of(functions)
    choice = options.get("tool_choice", "auto")
    if not isinstance(choice, str):
        raise InvalidRequest(
            f'tool_choice must be a str: "auto", "required", "none" or the name of a tool, got {preview(choice)}'
        )
    boolean("parallel_tool_calls", options.get("parallel_tool_calls", True))
    _check_grammars(options.get("tool_grammars"))
    if choice == "none":  # the prompt omits tools that the model may not call
        tools = None
    if variables is not None:
        check_variables(variables)
    continues_last = boolean("continue_final_message", options.get("continue_final_message", False))
    adds_special = boolean("add_special_tokens", options.get("add_special_tokens", True))
    return _Extras(tools, dict(variables or {}), continues_last, adds_special)


def _check_grammars(grammars: Any) -> None:
    """Check the grammars of tools; None for a call without."""
    if grammars is None:
        return
    if not isinstance(grammars, Mapping) or not all(isinstance(each, str) for each in (*grammars, *grammars.values())):
        raise InvalidRequest(f"tool_grammars must be a dict of Lark grammars by tool, got {preview(grammars)}")


def _ids(extras: _Extras, vocab_size: int, token_ids: Any) -> Prompt:
    ids = check_token_ids("token_ids", token_ids, vocab_size)
    if extras.chat_option:
        raise _no_chat(ids, extras.chat_option)
    return ids


def _text_or_chat(extras: _Extras, takes_empty: bool, prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        if not prompt and not takes_empty:
            raise InvalidRequest("the prompt is empty; it needs at least one character")
        if extras.chat_option:
            raise _no_chat(prompt, extras.chat_option)
        return prompt if extras.adds_special else Verbatim(prompt)
    if not _is_list(prompt):
        raise InvalidRequest(
            "a prompt is a str, a list of {role, content} messages, or a list of either; "
            f"got {preview(prompt)}{_cure_of(prompt)}"
        )
    return _chat(prompt, extras)


def _cure_of(value: Any) -> str:
    """Return the end of a message about a value that is no prompt."""
    match value:
        case Integral():
            return "; pass token ids as token_ids="
        case Mapping():
            return "; put a message into a list"
        case bytes() | bytearray():
            return "; decode it: .decode()"
        case PurePath():
            return "; read the file: .read_text()"
        case Iterable():
            return "; make it a list: list(...)"
    return ""


def _chat(messages: Any, extras: _Extras) -> Conversation:
    check_messages(messages)
    if extras.continues_last:
        check_continuable(messages, extras.variables)
    # A copy, because the intake reads the messages on another thread while the caller may change the conversation.
    return Conversation(with_sources(copy_messages(messages)), extras.tools, extras.variables, extras.continues_last)


def _no_chat(prompt: Prompt, option: str) -> InvalidRequest:
    kind = "text" if isinstance(prompt, str) else "token ids"
    return InvalidRequest(
        f"{option} needs a chat template, but a prompt of {kind} uses none: give a list of {{role, content}} messages "
        "as the prompt"
    )


def _is_list(value: Any) -> bool:
    """Return True if a value is a list or an array. NumPy integers are neither, although they have `ndim` too."""
    if isinstance(value, Sequence):
        return not isinstance(value, str | bytes | bytearray)
    return getattr(value, "ndim", 0) > 0
