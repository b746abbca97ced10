"""What a call says: its prompt in all accepted forms, told apart where it is given, and its other keywords."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from numbers import Integral
from typing import Any, Generic, Literal, Required, TypedDict, TypeVar

from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Continued, Conversation, Prompt, Verbatim
from rekindle.core.request.checks import boolean, preview
from rekindle.core.request.params import SamplingOptions, SamplingParams
from rekindle.core.request.request import check_token_ids
from rekindle.core.text.chat import (
    check_messages,
    check_open,
    check_variables,
    copied,
    with_more,
)
from rekindle.results.answer_table import PromptLabel
from rekindle.tools.tool import AnyTool, schemas_of

Messages = Sequence[Mapping[str, Any]]
TokenIds = Sequence[int]
OnePrompt = str | Messages | None
Prompts = list[str] | list[Messages] | None
ToolSchemas = Sequence[Mapping[str, Any]]
"""The JSON schemas of the tools that a model is told of."""

Ids = TypeVar("Ids")
"""Of the token ids of one prompt, or of several."""


class PromptOptions(TypedDict, Generic[Ids], total=False):
    """The keywords of a call that say what its prompt is.

    Attributes:
        token_ids: a prompt of token ids instead of text, or a list of such.
        tools: Python functions that the model may call, or JSON schemas of such, in every conversation.
        tool_choice: "auto", "required", "none", or the name of the tool that is to be called.
        chat_template_kwargs: further variables of the chat template, by name, for every conversation.
        continue_final_message: leave the last message of every conversation open, and go on with it.
        add_special_tokens: put the special tokens around every text that the tokenizer puts there. A conversation has
            those that its chat template writes.
    """

    token_ids: Ids | None
    tools: Sequence[AnyTool] | None
    tool_choice: str
    chat_template_kwargs: Mapping[str, Any] | None
    continue_final_message: bool
    add_special_tokens: bool


class GenerateOptions(PromptOptions[Ids], SamplingOptions, total=False):
    """The keywords of `generate` beside the prompt and `n`; their names are `GenerateOptions.__annotations__`."""


class Raising(GenerateOptions[Ids], total=False):
    """The keywords of a call that raises the first error of a list."""

    errors: Literal["raise"]


class Returning(GenerateOptions[Ids], total=False):
    """The keywords of a call that returns errors in their places in a list."""

    errors: Required[Literal["return"]]


PROMPT_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(PromptOptions.__annotations__),
    "tool_choice": "auto",
    "continue_final_message": False,
    "add_special_tokens": True,
}
GENERATE_DEFAULTS: dict[str, Any] = {
    **PROMPT_DEFAULTS,
    **{field.name: field.default for field in fields(SamplingParams)},
}
"""The defaults of the keywords, where the model recommends no other."""

OnePromptOptions = GenerateOptions[TokenIds]
RaisingOne = Raising[TokenIds]
RaisingMany = Raising[Sequence[TokenIds]]
ReturningMany = Returning[Sequence[TokenIds]]
ManyPromptsOptions = GenerateOptions[Sequence[TokenIds]]
EachPromptOptions = GenerateOptions[Iterable[TokenIds]]


def all_prompts(
    prompt: Any, options: PromptOptions[Any], vocab_size: int
) -> tuple[list[Prompt | InvalidRequest], bool]:
    """Return the prompts of a call, and whether they came as a batch; one of a batch may be its error instead.

    Args:
        prompt: an `OnePrompt` or a list of such.
        options: see `PromptOptions`.
        vocab_size: token ids must be below it.

    Raises:
        InvalidRequest: the only prompt is empty or of no accepted kind, or no conversation though tools or variables
            were given; or not exactly one of prompt and token ids was given, or tools or variables are malformed.
    """
    token_ids, extras = options.get("token_ids"), _extras(options)
    if (prompt is None) == (token_ids is None):
        raise InvalidRequest("give either a prompt or token_ids, and not both")
    if token_ids is not None:
        batch = _is_list(token_ids) and len(token_ids) > 0 and all(_is_list(ids) for ids in token_ids)
        return each_of(token_ids if batch else [token_ids], partial(_ids, extras, vocab_size), batch), batch
    batch = _is_list(prompt) and not (len(prompt) and isinstance(prompt[0], Mapping))
    return each_of(prompt if batch else [prompt], partial(_text_or_chat, extras), batch), batch


def each_of(items: Iterable[Any], make: Callable[[Any], Prompt], batch: bool) -> list[Prompt | InvalidRequest]:
    """Return the prompt that is made of each item, or in its place the error; an item may be an error already.

    Raises:
        InvalidRequest: the error of an item that is no batch.
    """
    made: list[Prompt | InvalidRequest] = []
    for item in items:
        try:
            made.append(item if isinstance(item, InvalidRequest) else make(item))
        except InvalidRequest as error:
            if not batch:
                raise
            made.append(error)
    return made


def one_chat(messages: Any, options: PromptOptions[Any]) -> Conversation:
    """Return the conversation of a call that takes one.

    Raises:
        InvalidRequest: it is none, or the tools or variables are malformed.
    """
    if isinstance(messages, str) or not _is_list(messages):
        raise InvalidRequest(f"messages must be a list of {{role, content}} mappings, got {preview(messages)}")
    return _chat(messages, _extras(options))


def one_prompt(prompts: Sequence[Prompt | Exception], batch: bool) -> Prompt:
    """Return the prompt of a call that takes one.

    Raises:
        InvalidRequest: the prompts came as a batch.
    """
    if batch:
        raise InvalidRequest(f"one prompt was expected, got a list of {len(prompts)}; use generate() for a batch")
    (prompt,) = prompts
    assert not isinstance(prompt, Exception), "only in a batch is an error in the place of a prompt"
    return prompt


def as_it_is(prefix: Prompt, options: PromptOptions[Any]) -> Prompt:
    """Return a prefix as a prompt to generate from; a conversation may be left open.

    Raises:
        InvalidRequest: the last message of what is no conversation was to be continued, or it has no content.
    """
    extras = _extras(options)
    if not extras.open:
        return prefix
    if not isinstance(prefix, Conversation):
        raise _no_chat(prefix, "continue_final_message=")
    check_open(prefix.messages, prefix.variables)
    return replace(prefix, continue_final_message=True)


def unfinished(prompt: Prompt) -> Prompt:
    """Return a prompt that another can continue: a conversation without the start of an answer."""
    if isinstance(prompt, Conversation):
        return replace(prompt, variables={"add_generation_prompt": False, **prompt.variables})
    return prompt


def continued(prefix: Prompt, more: Prompt) -> Prompt:
    """Return the prompt that begins with the prefix. A text that follows an open message is more of it.

    Raises:
        InvalidRequest: messages were to follow a text, or token ids messages.
    """
    match prefix, more:
        case Conversation(continue_final_message=True), str():
            return replace(prefix, messages=with_more(prefix.messages, more))
        case Conversation(), str():
            return replace(prefix, messages=[*prefix.messages, {"role": "user", "content": more}])
        case Conversation(), Conversation():
            messages = [*prefix.messages, *more.messages]
            return replace(prefix, messages=messages, continue_final_message=more.continue_final_message)
        case Conversation(), _:
            raise InvalidRequest("token ids cannot follow messages; give messages, or a str for one of the user's")
        case _, Conversation():
            raise InvalidRequest("messages cannot follow a text; give a str or token_ids")
    return Continued(prefix, more)


def tools_in(prompt: Prompt | Exception) -> ToolSchemas | None:
    """Return the tools that a conversation tells of; None for a prompt that is no conversation."""
    match prompt:
        case Conversation(tools=tools):
            return tools or ()
        case Continued(prefix=prefix):
            return tools_in(prefix)
    return None


def as_text(prompt: Prompt) -> str:
    """Return a prompt as its giver may read it: each message on a line of its own, token ids as numbers."""
    match prompt:
        case str():
            return prompt
        case Conversation():
            return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt.messages)
        case Continued():
            return f"{as_text(prompt.prefix)}{as_text(prompt.more)}"
    return " ".join(map(str, prompt))


def asked(prompt: Prompt | Exception, given: Any) -> PromptLabel:
    """Return what a table shows of a prompt: the text or the token ids, and of a conversation the user's last message.

    Args:
        prompt: the prompt, or the error for which it cannot be one.
        given: what was given for it.
    """
    match prompt:
        case Conversation(messages):
            users = [message for message in messages if message.get("role") == "user"]
            content = (users or messages)[-1].get("content") or ""
            return content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)
        case Continued():
            return asked(prompt.more, given)
        case Exception():
            return given if isinstance(given, str) else preview(given)
    return prompt


@dataclass(frozen=True, slots=True)
class _Extras:
    """The checked keywords of a call that are about its conversations."""

    tools: list[Mapping[str, Any]] | None
    variables: dict[str, Any]
    open: bool
    special: bool

    @property
    def given(self) -> str:
        """The keyword of one that was given, for a message; empty if none was."""
        if self.tools is not None:
            return "tools="
        return "chat_template_kwargs=" if self.variables else "continue_final_message=" if self.open else ""


def _extras(options: PromptOptions[Any]) -> _Extras:
    given, variables = options.get("tools"), options.get("chat_template_kwargs")
    tools = None if given is None else schemas_of(given)
    choice = options.get("tool_choice", "auto")
    if not isinstance(choice, str):
        raise InvalidRequest(
            f'tool_choice must be a str: "auto", "required", "none" or the name of a tool, got {preview(choice)}'
        )
    if choice == "none":  # the model is not told of what it may not call
        tools = None
    if variables is not None:
        check_variables(variables)
    stays_open = boolean("continue_final_message", options.get("continue_final_message", False))
    special = boolean("add_special_tokens", options.get("add_special_tokens", True))
    return _Extras(tools, dict(variables or {}), stays_open, special)


def _ids(extras: _Extras, vocab_size: int, token_ids: Any) -> Prompt:
    ids = check_token_ids("token_ids", token_ids, vocab_size)
    if extras.given:
        raise _no_chat(ids, extras.given)
    return ids


def _text_or_chat(extras: _Extras, prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequest("the prompt is empty; it needs at least one character")
        if extras.given:
            raise _no_chat(prompt, extras.given)
        return prompt if extras.special else Verbatim(prompt)
    if not _is_list(prompt):
        hint = "; token ids are given as token_ids=" if isinstance(prompt, Integral) else ""
        hint = "; put a message into a list" if isinstance(prompt, Mapping) else hint
        raise InvalidRequest(
            f"a prompt is a str, a list of {{role, content}} messages, or a list of either; got {preview(prompt)}{hint}"
        )
    return _chat(prompt, extras)


def _chat(messages: Any, extras: _Extras) -> Conversation:
    check_messages(messages)
    if extras.open:
        check_open(messages, extras.variables)
    # The intake reads them on another thread, and the caller may change the conversation meanwhile.
    return Conversation(copied(messages), extras.tools, extras.variables, extras.open)


def _no_chat(prompt: Prompt, given: str) -> InvalidRequest:
    kind = "text" if isinstance(prompt, str) else "token ids"
    return InvalidRequest(
        f"{given} is for the model's chat template, which a prompt of {kind} does not pass through: "
        "give a list of {role, content} messages as the prompt"
    )


def _is_list(value: Any) -> bool:
    """Tell whether a value is a list. An array is one; a numpy integer, which has an array's methods, is not."""
    if isinstance(value, Sequence):
        return not isinstance(value, str | bytes)
    return getattr(value, "ndim", 0) > 0
