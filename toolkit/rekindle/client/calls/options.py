"""Options of calls, as types, with their defaults."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Real
from typing import Any, Generic, Literal, Required, TypedDict, TypeVar

from rekindle.core.request.accepted import COLDEST
from rekindle.core.request.params import SamplingOptions, SamplingParams
from rekindle.tools.tool import AnyTool

Messages = Sequence[Mapping[str, Any]]
"""Conversation: messages with the keys role and content, oldest first."""
TokenIds = Sequence[int]
"""Token ids of one prompt."""
OnePrompt = str | Messages | None
"""Text or a conversation; None if the call has `token_ids` instead."""
Prompts = list[str] | Sequence[Messages] | None
"""List of prompts; None if the call has `token_ids` instead."""
ToolSchemas = Sequence[Mapping[str, Any]]
"""JSON schemas of the tools in a conversation's prompt."""

Ids = TypeVar("Ids")
"""Type of `token_ids`: the ids of one prompt, or of several prompts."""


def is_greedy(temperature: Any) -> bool:
    """Return True for a temperature that counts as 0."""
    return isinstance(temperature, Real) and 0 <= float(temperature) < COLDEST


class PromptOptions(TypedDict, Generic[Ids], total=False):
    """Options of a call for its prompts.

    Attributes:
        token_ids: the token ids of the prompt, in place of text; or a list of the ids of several prompts.
        images: images for the prompt: PIL images, arrays, paths, bytes of files or `data:` URLs; for a list of prompts,
            a list of them for each. A text has them in the places of its image tokens, or first; a conversation, in
            its last user message.
        tools: Python functions that the model may call, or their JSON schemas; for every conversation of the call.
        tool_choice: "auto", "required", "none", or the name of the tool to call.
        parallel_tool_calls: whether an answer may have several calls.
        tool_grammars: Lark grammars of tools with one text as argument, by name.
        chat_template_kwargs: additional variables of the chat template by name, for every conversation.
        continue_final_message: whether the model continues the last message of every conversation.
        add_special_tokens: whether the tokenizer adds its special tokens to text prompts. In conversations, the chat
            template writes the special tokens.
    """

    token_ids: Ids | None
    images: Sequence[Any] | None
    tools: Sequence[AnyTool] | None
    tool_choice: str
    parallel_tool_calls: bool
    tool_grammars: Mapping[str, str] | None
    chat_template_kwargs: Mapping[str, Any] | None
    continue_final_message: bool
    add_special_tokens: bool


class GenerateOptions(PromptOptions[Ids], SamplingOptions, total=False):
    """Options of `generate`, apart from the prompt and `n`; `GenerateOptions.__annotations__` has their names."""


class Raising(GenerateOptions[Ids], total=False):
    """Options of a call that raises the first error of its batch."""

    errors: Literal["raise"]


class Returning(GenerateOptions[Ids], total=False):
    """Options of a call for a batch with each error in the place of its generation."""

    errors: Required[Literal["return"]]


PROMPT_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(PromptOptions.__annotations__),
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "continue_final_message": False,
    "add_special_tokens": True,
}
GENERATE_DEFAULTS: dict[str, Any] = {
    **PROMPT_DEFAULTS,
    **{field.name: field.default for field in fields(SamplingParams)},
}
"""Defaults of all options, for models without recommended sampling parameters."""
UNLIMITED: dict[str, Any] = {"max_tokens": None}
"""Defaults of conversations, where they are others: answers end by themselves, or with the context."""

OnePromptOptions = GenerateOptions[TokenIds]
RaisingOne = Raising[TokenIds]
RaisingMany = Raising[Sequence[TokenIds]]
ReturningMany = Returning[Sequence[TokenIds]]
ManyPromptsOptions = GenerateOptions[Sequence[TokenIds]]
EachPromptOptions = GenerateOptions[Iterable[TokenIds]]
