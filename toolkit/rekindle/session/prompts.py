"""What `generate` accepts as a prompt, told apart where it is given."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from rekindle.errors import InvalidRequest
from rekindle.messages import Chat, Continued, Prompt
from rekindle.models.text.chat import check_messages, check_tools, check_variables
from rekindle.request import check_token_ids

Messages = Sequence[Mapping[str, Any]]
TokenIds = Sequence[int]
Tools = Sequence[Mapping[str, Any]]
Variables = Mapping[str, Any]


def one_prompt(
    prompt: str | Messages | None,
    token_ids: TokenIds | None,
    vocab_size: int,
    tools: Tools | None = None,
    variables: Variables | None = None,
) -> Prompt:
    """The prompt of one request.

    Args:
        tools, variables: see `all_prompts`.

    Raises:
        InvalidRequest: it is empty or of no accepted kind, not exactly one of the two was given, or tools or variables
            do not fit it.
    """
    prompts, batch = all_prompts(prompt, token_ids, vocab_size, tools, variables)
    if batch:
        raise InvalidRequest("one prompt was expected, got a list of them; use generate() for a batch")
    return prompts[0]


def all_prompts(
    prompt: str | Messages | Sequence[str] | Sequence[Messages] | None,
    token_ids: TokenIds | Sequence[TokenIds] | None,
    vocab_size: int,
    tools: Tools | None = None,
    variables: Variables | None = None,
) -> tuple[list[Prompt], bool]:
    """The prompts of a call, and whether they came as a batch.

    Args:
        tools: JSON schemas of the functions that the model may call, in every conversation.
        variables: further variables of the chat template, for every conversation.

    Raises:
        InvalidRequest: one is empty or of no accepted kind, not exactly one of the two was given, tools or variables
            are malformed, or they were given for a prompt that is no conversation.
    """
    if (prompt is None) == (token_ids is None):
        raise InvalidRequest("give either a prompt or token_ids, and not both")
    if tools is not None:
        check_tools(tools)
    if variables is not None:
        check_variables(variables)
    if token_ids is not None:
        prompts, batch = _token_prompts(token_ids, vocab_size)
    else:
        batch = _is_list(prompt) and len(prompt) > 0 and not isinstance(prompt[0], Mapping)  # type: ignore[arg-type, index]
        items: Any = prompt if batch else [prompt]
        prompts = [_text_or_chat(item, tools, variables or {}) for item in items]
    if tools is not None or variables:
        _check_chats(prompts, "chat_template_kwargs=" if tools is None else "tools=")
    return prompts, batch


def as_text(prompt: Prompt) -> str:
    """A prompt as its giver may read it: the messages of a conversation below each other, token ids as numbers."""
    match prompt:
        case str():
            return prompt
        case Chat():
            return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in prompt.messages)
        case Continued():
            return f"{as_text(prompt.prefix)}{as_text(prompt.more)}"
    return " ".join(map(str, prompt))


def _token_prompts(token_ids: Any, vocab_size: int) -> tuple[list[Prompt], bool]:
    batch = _is_list(token_ids) and len(token_ids) > 0 and all(_is_list(ids) for ids in token_ids)
    items = token_ids if batch else [token_ids]
    return [check_token_ids("token_ids", ids, vocab_size) for ids in items], batch


def _text_or_chat(prompt: Any, tools: Tools | None, variables: Variables) -> Prompt:
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequest("the prompt is empty; it needs at least one character")
        return prompt
    if not _is_list(prompt):
        hint = "; token ids are given as token_ids=" if isinstance(prompt, Integral) else ""
        raise InvalidRequest(
            f"a prompt is a str, a list of {{role, content}} messages, or a list of either; got {prompt!r:.80}{hint}"
        )
    check_messages(prompt)
    # The intake reads them on another thread, while the caller may already write the conversation on.
    return Chat([dict(message) for message in prompt], None if tools is None else list(tools), dict(variables))


def _check_chats(prompts: Sequence[Prompt], given: str) -> None:
    for prompt in prompts:
        if not isinstance(prompt, Chat):
            kind = "text" if isinstance(prompt, str) else "token ids"
            raise InvalidRequest(
                f"{given} is for the model's chat template, which a prompt of {kind} does not pass through: "
                "give a list of {role, content} messages as the prompt"
            )


def _is_list(value: Any) -> bool:
    """Arrays are lists too, but a numpy integer, which has an array's methods, is not."""
    if isinstance(value, Sequence):
        return not isinstance(value, str | bytes)
    return getattr(value, "ndim", 0) > 0
