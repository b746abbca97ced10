"""Contents of messages in the form that a chat template supports for their role: a text or a list of parts."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.formats.rendering.chat_template import ChatTemplate
from rekindle.formats.rendering.template import loops_over_parts

_PROBE: Final = "PROBE"
_CALL: Final = {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {}}}


def adapt_content(message: Mapping[str, Any], template: ChatTemplate) -> Mapping[str, Any]:
    """Return a message with its content in a form that the template supports for the role.

    Raises:
        InvalidRequest: the template supports neither form.
    """
    content, role = message.get("content"), message["role"]
    if not content:
        return message
    in_parts = not isinstance(content, str)
    forms = _forms_of(template, role)
    if forms is None:  # no position of the role was accepted: inspect the template's source instead
        if not in_parts or loops_over_parts(template.source):
            return message
    elif not forms:
        if not _forms_of(template, "user"):  # the probe itself does not work for this template
            return message
        raise InvalidRequest(
            f"the model's chat template drops the content of messages with role {role!r}: put it into a message "
            "with role 'user'"
        )
    elif in_parts in forms:
        return message
    if in_parts:
        if any(part["type"] in ("image", "video") for part in content):
            raise InvalidRequest(
                f"the model's chat template has no place for an image in a message with role {role!r}: open the model "
                "with the template of its family, as in open(..., chat_template=...)"
            )
        return {**message, "content": text_of(message)}
    return {**message, "content": [{"type": "text", "text": content}]}


def text_of(message: Mapping[str, Any]) -> str:
    """Return the content of a message as one text, without images."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


@lru_cache(maxsize=256)
def _forms_of(template: ChatTemplate, role: str) -> frozenset[bool] | None:
    """Return the content forms rendered by a template for a role: False for a text, True for parts.

    Returns:
        None if the template rejects messages of the role in every position tried.
    """
    forms, rejected = set[bool](), 0
    for in_parts in (False, True):
        text = _render_probe(template, role, [{"type": "text", "text": _PROBE}] if in_parts else _PROBE)
        rejected += text is None
        if text is None or _PROBE not in text:
            continue
        # A template that concatenates parts as strings writes them in Python or JSON syntax.
        if not in_parts or not re.search(r"['\"]text['\"]:", text):
            forms.add(in_parts)
    return None if rejected == 2 else frozenset(forms)


def _render_probe(template: ChatTemplate, role: str, content: Any) -> str | None:
    """Render a short conversation with a message of the role. Return None if the template rejects every variant."""
    user: Mapping[str, Any] = {"role": "user", "content": "x"}
    call_message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    probe: Mapping[str, Any] = {"role": role, "content": content, "name": "f", "tool_call_id": _CALL["id"]}
    plain_message = {"role": role, "content": content}
    for messages in ([user, call_message, probe], [plain_message, user], [user, plain_message], [plain_message]):
        if (role == "tool") != (call_message in messages):
            continue
        try:
            return template.render(messages, variables={"add_generation_prompt": False})
        except InvalidRequest:
            continue
    return None
