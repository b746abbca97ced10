"""Display of a conversation: each message under its role."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rekindle import markup
from rekindle.formats.images.parts import images_in
from rekindle.formats.images.writing import description
from rekindle.results.response_card import content_html, images_html

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Message keys for reasoning, in the order of lookup; chat templates use different keys."""


def chat_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return messages as text, each beginning on a new line with its role."""
    return "\n".join(f"{message.get('role')}: {content(message)}" for message in messages)


def chat_html(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return messages as HTML, with reasoning folded."""
    return "".join(_html(message) for message in messages)


def _html(message: Mapping[str, Any]) -> str:
    return f'<div style="margin:0.5em 0 0 0">{markup.note(str(message.get("role")))}{message_html(message)}</div>'


def message_html(message: Mapping[str, Any]) -> str:
    """Return a message as HTML without its role: the reasoning folded, an answer as rendered Markdown, texts whole."""
    draw = content_html if message.get("role") == "assistant" else markup.passage
    text = _content(message, with_images=False)
    return f"{reasoning_html(message)}{_images_html(message)}{draw(text, folds=False)}"


def _images_html(message: Mapping[str, Any]) -> str:
    """Return thumbnails of the images of a message; empty without images."""
    return images_html([image for image, _ in images_in([message])])


def reasoning_html(message: Mapping[str, Any]) -> str:
    """Return the reasoning of a message as folded HTML; empty without reasoning."""
    reasoning = next((str(message[key]) for key in REASONING if message.get(key)), "")
    return markup.folded("reasoning", markup.passage(reasoning)) if reasoning else ""


def content(message: Mapping[str, Any]) -> str:
    """Return the content of a message, with the sizes of its images, followed by its tool calls."""
    return _content(message, with_images=True)


def _content(message: Mapping[str, Any], *, with_images: bool) -> str:
    parts = message.get("content") or ""
    texts = [f"[{description(image)}]" for image, _ in images_in([message])] if with_images else []
    texts.append(parts if isinstance(parts, str) else "\n".join(part["text"] for part in parts if "text" in part))
    text = "\n".join(filter(None, texts))
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    lines = [f"{call.get('name')}({_arguments(call.get('arguments'))})" for call in calls]
    return "\n".join([*([text] if text else []), *lines])


def _arguments(arguments: Any) -> str:
    if not isinstance(arguments, Mapping):
        return str(arguments)
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
