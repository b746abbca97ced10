"""States of a conversation between its turns, and the beginnings of turns without a new message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.chats.turn_tokens import NO_TOKENS, TurnTokens
from rekindle.chats.turns import TurnOptions
from rekindle.client.calls.images import with_images, with_sources
from rekindle.client.window import WHOLE, Window
from rekindle.core.errors import InvalidRequest
from rekindle.core.messages import Conversation
from rekindle.core.request import checks
from rekindle.formats.rendering.chat import check_messages, copy_messages
from rekindle.results.generation import Generation

Messages = Sequence[Mapping[str, Any]]
NewMessages = str | Sequence[Mapping[str, Any]] | None
"""New messages of a turn: a user message as a str, a list of messages, or None if the last message awaits an answer."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Turn with another answer to a message of the user.

    Attributes:
        place: the index of a message in the turn of the former answer; None for the last one.
    """

    place: int | None = None


@dataclass(frozen=True, slots=True)
class Continue:
    """Turn with more of the last answer."""


Again = Retry | Continue
"""Turn without a new message."""


@dataclass(frozen=True, slots=True)
class State:
    """State of a conversation between two turns.

    Attributes:
        messages: the messages, oldest first.
        turn_tokens: the tokens of earlier turns.
        window: the part of the messages for the model.
        answer: the last answer; None before the first, and after an edit.
        options: the options of the last turn; None before the first.
        extends: whether the last answer has continued that of the state before.
    """

    messages: tuple[Mapping[str, Any], ...]
    turn_tokens: TurnTokens = NO_TOKENS
    window: Window = WHOLE
    answer: Generation | None = None
    options: TurnOptions | None = None
    extends: bool = False


def window_of(state: State, messages: Messages) -> Window:
    """Return the window for the beginning of a conversation: the whole if its own replaces later messages."""
    return state.window if state.window.until <= len(messages) else WHOLE


def question_of(messages: Messages) -> list[Mapping[str, Any]]:
    """Return a conversation up to the last message of the user, with instructions after it.

    Raises:
        InvalidRequest: there is none.
    """
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        raise InvalidRequest("there is no message of the user to answer anew: say something first")
    answers = (place for place in range(users[-1], len(messages)) if messages[place]["role"] == "assistant")
    return [*messages[: next(answers, len(messages))]]


def before_answer(messages: Messages, answer: Generation | None) -> tuple[list[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a conversation before its last answer, and the message of this answer, to continue it.

    Args:
        answer: the answer; None if only its message is known.

    Raises:
        InvalidRequest: there is no answer to continue.
    """
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise InvalidRequest("the last message is no answer to continue: say something first")
    if answer is not None and answer.finish_reason == "stop":
        raise InvalidRequest(
            "the last answer is complete, since the model ended it: a further message asks for more, and a retry for "
            "another answer"
        )
    if answer is None and messages[-1].get("tool_calls"):
        raise InvalidRequest('the last answer has calls of tools: give their results, as messages of the role "tool"')
    return [*messages[:-1]], messages[-1]


def messages_of(new_messages: NewMessages, images: Sequence[Any] | None) -> list[Mapping[str, Any]]:
    """Return the new messages of a turn as a list, with images in the last one of the user.

    Raises:
        InvalidRequest: `new_messages` is neither a str nor a list of messages, or there is no place for images.
    """
    if images is not None:
        if new_messages is None:
            raise InvalidRequest.of("images", "images come with a message: say something about them")
        conversation = with_images(Conversation(messages_of(new_messages, None), None, {}), images)
        assert isinstance(conversation, Conversation), "a conversation stays one"
        return list(conversation.messages)
    if new_messages is None:
        return []
    if isinstance(new_messages, str):
        if not new_messages:
            raise InvalidRequest("the user message is empty; it needs at least one character")
        return [{"role": "user", "content": new_messages}]
    if not checks.is_sequence(new_messages):
        hint = "; put it in a list" if isinstance(new_messages, Mapping) else ""
        raise InvalidRequest(
            f"a turn takes a str or a list of {{role, content}} mappings, got {checks.preview(new_messages)}{hint}"
        )
    check_messages(new_messages)
    return list(with_sources(copy_messages(new_messages)))
