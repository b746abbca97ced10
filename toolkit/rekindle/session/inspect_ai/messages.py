"""Conversations and tools of inspect-ai in the forms of a session."""

import json
from collections.abc import Sequence
from typing import Any, Final

from inspect_ai.model import ChatMessage
from inspect_ai.tool import ToolChoice, ToolInfo

from rekindle.core.errors import InvalidRequest
from rekindle.formats.response import MessageForm
from rekindle.server.common.messages import REASONING, message

TOOL_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def conversation(messages: Sequence[ChatMessage], form: MessageForm) -> list[dict[str, Any]]:
    """Return a conversation in the form of a model's chat template.

    Raises:
        InvalidRequest: a message has an image or another content than text.
    """
    return [message(_plain(each), form) for each in messages]


def continues(messages: Sequence[ChatMessage]) -> bool:
    """Return True if the model continues the last message: one of the assistant, with text and without tool calls."""
    last = messages[-1]
    return last.role == "assistant" and not last.tool_calls and bool(last.text)


def tool_options(tools: Sequence[ToolInfo], choice: ToolChoice) -> dict[str, Any]:
    """Return the tools and the tool choice as keywords of the session; empty without tools."""
    if not tools:
        return {}
    schemas = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters.model_dump(exclude_none=True),
            },
        }
        for tool in tools
    ]
    return {"tools": schemas, "tool_choice": TOOL_CHOICES[choice] if isinstance(choice, str) else choice.name}


def _plain(source: ChatMessage) -> dict[str, Any]:
    """Return a message in OpenAI's form."""
    texts, thoughts = _texts(source)
    plain: dict[str, Any] = {"role": source.role, "content": "\n".join(texts)}
    if thoughts:
        plain[REASONING[0]] = "\n".join(thoughts)
    if source.role == "tool":
        plain |= {"tool_call_id": source.tool_call_id, "name": source.function}
        if source.error is not None:
            plain["content"] = source.error.message
    # The text of a call that could not be read is in the content, as the model wrote it.
    calls = [call for call in (source.tool_calls or () if source.role == "assistant" else ()) if not call.parse_error]
    if calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in calls
        ]
    return plain


def _texts(source: ChatMessage) -> tuple[list[str], list[str]]:
    """Return the texts of a message, and the texts of its reasoning."""
    if isinstance(source.content, str):
        return [source.content], []
    texts, thoughts = list[str](), list[str]()
    for part in source.content:
        match part.type:
            case "text":
                texts.append(part.text)
            case "reasoning":
                thoughts.append(part.summary or "" if part.redacted else part.reasoning)
            case kind:
                raise InvalidRequest(f"a session reads text, and a message of role {source.role!r} has {kind} content")
    return texts, [each for each in thoughts if each]
