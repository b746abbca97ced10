"""Items of responses, OpenAI's form of conversations, as messages for a chat template."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.core.request.checks import preview
from rekindle.server.common.fields import Fields, name_list
from rekindle.server.common.pictures import URL_PARTS, from_url
from rekindle.server.common.tools.offer import name_for_model

Item = Mapping[str, Any]

TEXT_PARTS: Final[Mapping[str, str]] = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
}
"""The field with the text, by the type of a content part."""
CALLS: Final[Mapping[str, tuple[str, str]]] = {
    "apply_patch_call": ("apply_patch", "operation"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
}
"""The name of a tool and the field of its arguments, by the type of calls for this tool alone."""
RESULTS: Final = (
    "apply_patch_call_output",
    "custom_tool_call_output",
    "function_call_output",
    "local_shell_call_output",
    "shell_call_output",
)
"""The types of results of calls."""
TOOLS: Final = ("additional_tools", "tool_search_output")
"""The types of items with further tools."""
UNREADABLE: Final = (
    *(
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
    ),
    *("compaction", "compaction_summary", "context_compaction", "mcp_approval_request", "mcp_approval_response"),
    *("compaction_trigger", "mcp_list_tools", "program", "program_output", "tool_search_call", "web_search_call"),
)
"""The types of items about tools on OpenAI's servers, and of items for OpenAI's models alone."""
REFERENCE: Final = "item_reference"
UPDATE: Final = "configuration_update"
"""The type of items with settings for the rest of a conversation."""
UPDATED: Final = ("reasoning", "text")
"""The fields of the body that such an item has."""
TRIGGER: Final = "compaction_trigger"
"""The type of a last item that asks for a shorter conversation instead of an answer."""


def read_items(body: Fields, targets: Mapping[str, Item]) -> list[Item]:
    """Take the input as items, with the targets of references in their place.

    Args:
        body: the fields of the body.
        targets: the items by id.

    Raises:
        ApiError: the input has another form.
    """
    items = body.any("input")
    if isinstance(items, str):
        return [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list) or not items or not all(isinstance(each, dict) for each in items):
        body.refuse("input", f"must be a text or a non-empty list of messages and other items, got {preview(items)}")
    return [targets[each["id"]] if is_reference(each) else each for each in items]


def is_reference(item: Item) -> bool:
    """Return True for a reference to a kept item: the type may be absent beside an id."""
    return item.get("type") == REFERENCE or (item.get("type") is None and "id" in item and "role" not in item)


def references_in(body: Fields) -> list[str]:
    """Return the ids of the items to which an input refers, without taking the field.

    Raises:
        ApiError: a reference has no id, or two have the same.
    """
    items = body.peek(["input"]).get("input")
    references = (
        [each for each in items if isinstance(each, dict) and is_reference(each)] if isinstance(items, list) else []
    )
    names: dict[str, None] = {}
    for each in references:
        name = each.get("id")
        if not isinstance(name, str):
            body.refuse("input", f"has an item_reference whose id must be a string, got {preview(name)}")
        if name in names:
            body.refuse("input", f"has two references to the item {preview(name)}: name each item once")
        names[name] = None
    return list(names)


def update(body: Fields, items: Sequence[Item]) -> None:
    """Replace settings of a body by those of items; the last value of each counts.

    Raises:
        ApiError: an item has a setting of another form.
    """
    for each in items:
        if each.get("type") == UPDATE:
            for name in UPDATED:
                values = each.get(name)
                if isinstance(values, dict):
                    body.replace(name, values)
                elif values is not None:
                    body.refuse("input", f"has a {UPDATE} whose {name} must be an object, got {preview(values)}")


def tools_in(items: Sequence[Item]) -> list[Any]:
    """Return the tools that items add to those of the body."""
    lists = [each.get("tools") for each in items if each.get("type") in TOOLS]
    return [tool for tools in lists if isinstance(tools, list) for tool in tools]


def messages_of(body: Fields, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return items as messages, without items for other models, about which there is a note.

    Raises:
        ApiError: an item has an unknown type or form, or none has a text.
    """
    messages: list[dict[str, Any]] = []
    unreadable: list[str] = []
    for each in items:
        kind = each.get("type") or "message"
        if kind == TRIGGER and each is items[-1]:
            body.refuse("input", f"ends with a {TRIGGER}, and no model here shortens a conversation: send fewer items")
        if kind in UNREADABLE:
            unreadable.append(kind)
        elif kind not in TOOLS and kind != UPDATE:
            _add(body, messages, kind, {name: value for name, value in each.items() if value is not None})
    if unreadable:
        body.note(f"items of the types {name_list(unreadable)} are left out: no model here can read them")
    if not messages:
        body.refuse("input", "must have a message, and has none with a text")
    for each in messages:
        if _has_only_reasoning(each):
            each["content"] = ""
    return messages


def _add(body: Fields, messages: list[dict[str, Any]], kind: Any, item: Item) -> None:
    """Add an item to the messages; adjacent items of the assistant become one message."""
    if kind == "message":
        _add_message(body, messages, item)
    elif kind == "reasoning":
        _add_reasoning(body, messages, item)
    elif kind == "function_call":
        _add_call(messages, item, {"name": _name_of(item), "arguments": item.get("arguments")})
    elif kind == "custom_tool_call":
        _add_call(messages, item, {"name": _name_of(item), "input": item.get("input")}, "custom")
    elif isinstance(kind, str) and kind in CALLS:
        name, field = CALLS[kind]
        _add_call(messages, item, {"name": name, "arguments": json.dumps(item.get(field, {}), ensure_ascii=False)})
    elif kind == "mcp_call":  # with its result
        _add_call(messages, item, {"name": item.get("name"), "arguments": item.get("arguments")})
        result = item.get("output", item.get("error", ""))
        messages.append({"role": "tool", "tool_call_id": item.get("id"), "content": result})
    elif kind in RESULTS:
        content = _result(body, kind, item.get("output"))
        messages.append({"role": "tool", "tool_call_id": _call_id(item), "content": content})
    else:
        body.refuse("input", f"has an item of type {preview(kind)}, and this type is not served")


def _name_of(item: Item) -> Any:
    """Return the name of a called tool as the model saw it."""
    namespace, name = item.get("namespace"), item.get("name")
    return name_for_model(namespace, name) if isinstance(name, str) and isinstance(namespace, str) else name


def _call_id(item: Item) -> Any:
    """Return the id of a call: for some types, the id of the item."""
    return item.get("call_id") or item.get("id")


def _add_call(messages: list[dict[str, Any]], item: Item, call: Mapping[str, Any], kind: str = "function") -> None:
    """Add a call to the message of the assistant."""
    _assistant(messages).setdefault("tool_calls", []).append({"id": _call_id(item), "type": kind, kind: call})


def _add_message(body: Fields, messages: list[dict[str, Any]], item: Item) -> None:
    role, content = item.get("role"), _content(body, item.get("content"))
    if role == "assistant" and messages and _has_only_reasoning(messages[-1]):
        messages[-1]["content"] = content
    else:
        messages.append({"role": role, "content": content})


def _add_reasoning(body: Fields, messages: list[dict[str, Any]], item: Item) -> None:
    """Add the text of reasoning or of a summary, behind earlier reasoning of the same turn."""
    texts = []
    for field in ("content", "summary"):
        parts = item.get(field, [])
        if not isinstance(parts, list):
            body.refuse("input", f"has reasoning whose {field} must be a list, got {preview(parts)}")
        texts.append("".join(str(part.get("text", "")) for part in parts if isinstance(part, dict)))
    text = texts[0] or texts[1]
    if text:
        message = _assistant(messages)
        message["reasoning"] = f"{message['reasoning']}\n{text}" if "reasoning" in message else text


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last message if it is the assistant's, or append a new one and return it."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _has_only_reasoning(message: Mapping[str, Any]) -> bool:
    """Return True if a message is the assistant's and has only reasoning so far."""
    return message["role"] == "assistant" and message["content"] is None and "tool_calls" not in message


def _content(body: Fields, content: Any) -> Any:
    """Return content in the format of chats, with parts of text and images."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        field = TEXT_PARTS.get(str(part.get("type"))) if isinstance(part, dict) else None
        if isinstance(part, dict) and part.get("type") in URL_PARTS:
            parts.append(from_url(part, "input", "the image of an item in input"))
            continue
        if field is None:
            body.refuse("input", f"has a part other than text or an image: {preview(part)}")
        parts.append({"type": "text", "text": part.get(field)})
    return parts


def _result(body: Fields, kind: str, output: Any) -> Any:
    """Return the result of a call: a text, or parts; the pieces of a shell's output as JSON."""
    if output is None:
        return ""
    if kind == "shell_call_output" and not isinstance(output, str):
        return json.dumps(output, ensure_ascii=False)
    return _content(body, output)


def item_in_api(item: Item, identity: str) -> dict[str, Any]:
    """Return an input item in the form of OpenAI's API, with a type, an id and a list of parts as content."""
    item = {name: value for name, value in item.items() if value is not None}
    kind = item.get("type", "message")
    content, is_answer = item.get("content"), item.get("role") == "assistant"
    result = {"id": identity, "type": kind, **item}
    if kind == "message":
        text = {"type": "output_text", "annotations": [], "logprobs": []} if is_answer else {"type": "input_text"}
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        result["content"] = [
            {**text, **part, "type": text["type"]} if _is_text(part, text["type"]) else part
            for part in (parts if isinstance(parts, list) else [])
        ]
    if kind != "reasoning":
        result.setdefault("status", "completed")
    return result


def _is_text(part: Any, kind: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("text", kind)
