"""Arguments of past calls in a form of the chat template, even those of a cut call."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.formats.rendering.chat_template import ChatTemplate

_TEXT: Final = 'PROBE{"'
"""Arguments of a cut call."""
_OBJECT: Final = {"probe": "x"}


def adapt_arguments(message: Mapping[str, Any], template: ChatTemplate) -> Mapping[str, Any]:
    """Return a message with the arguments of its calls in a form of the template.

    Objects, and texts of objects for a template with texts, stay as they are. Other arguments, as of a call cut by
    `max_tokens`, become a text, or an empty object for a template without texts.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple) or all(map(_has_object, calls)):
        return message
    return {**message, "tool_calls": [call if _has_object(call) else _adapted(call, template) for call in calls]}


def _has_object(call: Any) -> bool:
    """Return True for a call with an object as its arguments, and for a malformed call, left to the template."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return not isinstance(function, Mapping) or isinstance(function.get("arguments", {}), Mapping)


def _adapted(call: Mapping[str, Any], template: ChatTemplate) -> Mapping[str, Any]:
    function = call.get("function", call)
    changed = {**function, "arguments": _arguments(function["arguments"], template)}
    return {**call, "function": changed} if "function" in call else changed


def _arguments(arguments: Any, template: ChatTemplate) -> Any:
    """Return arguments other than an object in a form of the template."""
    if _renders_text(template):
        if arguments is None:
            return {} if _renders_objects(template) else "{}"
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else None
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


@lru_cache(maxsize=128)
def _renders_text(template: ChatTemplate) -> bool:
    return _renders_arguments(template, _TEXT, _TEXT)


@lru_cache(maxsize=128)
def _renders_objects(template: ChatTemplate) -> bool:
    return _renders_arguments(template, _OBJECT, "probe")


def _renders_arguments(template: ChatTemplate, arguments: Any, part: str) -> bool:
    """Return True if a template renders the arguments of a call with a part of them."""
    call = {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": arguments}}
    for content in (None, ""):
        messages: list[Mapping[str, Any]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
        ]
        try:
            if part in template.render(messages, variables={"add_generation_prompt": False}):
                return True
        except InvalidRequest:
            continue
    return False
