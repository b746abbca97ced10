"""Places of system messages, so that each reaches the prompt by any chat template."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.formats.rendering.chat_template import ChatTemplate
from rekindle.formats.rendering.content_form import adapt_content, text_of

Message = Mapping[str, Any]

SYSTEM_ROLES: Final = ("system", "developer")
"""Roles of instructions. Developer is the later name of OpenAI's API, and few templates know it."""
MOST_LEADING: Final = 8
"""The most separate instructions at the start."""


def place_system(messages: Sequence[Message], template: ChatTemplate) -> Sequence[Message]:
    """Return messages with all instructions in places of the chat template, by preference their own.

    Otherwise, the instructions at the start become one message, or begin the first message of the user. Later ones go
    into the message before: into a message of the user, or into the result of a tool, so that the last question of the
    user stays the last one for the template. Behind an answer, they go into the next message.
    """
    if not any(map(_instructs, messages)):
        return messages
    if not _renders(template, ("user",)) and not _renders(template, ("system", "user")):
        return messages  # the probe itself does not work for this template
    messages = [_with_known_role(message, template) for message in messages]
    head = list(takewhile(_instructs, messages))
    tail = messages[len(head) :]
    if any(map(_instructs, tail)) and not _renders_late(head, tail, template):
        tail = _fold(tail)
    if len(head) > 1 and (len(head) > MOST_LEADING or not _renders(template, (*_roles(head), "user"))):
        head = [{**head[0], "content": "\n\n".join(filter(None, map(text_of, head)))}]
    if head and not _renders(template, (*_roles(head), "user")):
        return _begin_user(text_of(head[0]), tail)
    return [*head, *tail]


def _instructs(message: Message) -> bool:
    return message["role"] in SYSTEM_ROLES


def _roles(messages: Sequence[Message]) -> tuple[str, ...]:
    return tuple(message["role"] for message in messages)


def _with_known_role(message: Message, template: ChatTemplate) -> Message:
    """Return a message of a developer with the role system, unless the template renders the newer name."""
    if message["role"] != "developer" or _renders(template, ("developer", "user")):
        return message
    return {**message, "role": "system"}


def _renders_late(head: Sequence[Message], tail: Sequence[Message], template: ChatTemplate) -> bool:
    """Return True if a template renders the later instructions in their places."""
    first = _roles(head)[:1]
    late = {message["role"] for message in tail if _instructs(message)}
    return all(_renders(template, (*first, "user", "assistant", role, "user", role)) for role in late)


@lru_cache(maxsize=256)
def _renders(template: ChatTemplate, roles: tuple[str, ...]) -> bool:
    """Return True if a template renders the contents of messages with these roles, each in its place."""
    messages = [{"role": role, "content": f"PROBE{place}."} for place, role in enumerate(roles)]
    try:
        text = template.render([adapt_content(message, template) for message in messages])
    except InvalidRequest:
        return False
    place = 0
    for message in messages:
        place = text.find(message["content"], place)
        if place < 0:
            return False
    return True


def _begin_user(text: str, messages: Sequence[Message]) -> list[Message]:
    """Return messages with a text at the start of the first message of the user, or as a message before all others."""
    place = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
    if place is None:
        return [{"role": "user", "content": text}, *messages]
    return [*messages[:place], _with_text(messages[place], text, before=True), *messages[place + 1 :]]


def _fold(messages: Sequence[Message]) -> list[Message]:
    """Return messages with each instruction in a message beside it."""
    folded: list[Message] = []
    waiting: list[str] = []  # instructions behind an answer
    for message in messages:
        role = message["role"]
        if _instructs(message):
            text = text_of(message)
            if not folded or folded[-1]["role"] == "assistant":
                waiting.append(text)
            else:
                folded[-1] = _with_text(folded[-1], text)
            continue
        if waiting and role == "assistant":
            folded.append({"role": "user", "content": "\n\n".join(waiting)})
        elif waiting:
            message = _with_text(message, "\n\n".join(waiting), before=role == "user")
        waiting.clear()
        folded.append(message)
    if waiting:
        folded.append({"role": "user", "content": "\n\n".join(waiting)})
    return folded


def _with_text(message: Message, text: str, *, before: bool = False) -> Message:
    """Return a message with a paragraph more, after its content or before it."""
    content = message.get("content") or ""
    if not text or not content:
        return {**message, "content": text or content}
    if isinstance(content, str):
        return {**message, "content": f"{text}\n\n{content}" if before else f"{content}\n\n{text}"}
    # The line breaks are in the part, because templates write parts without a space between them.
    if before:
        return {**message, "content": [{"type": "text", "text": f"{text}\n\n"}, *content]}
    return {**message, "content": [*content, {"type": "text", "text": f"\n\n{text}"}]}
