"""Rendering of messages into a prompt by the model's chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.rendering.call_arguments import adapt_arguments
from rekindle.formats.rendering.chat_template import ChatTemplate
from rekindle.formats.rendering.content_form import adapt_content
from rekindle.formats.rendering.efforts import EFFORT, adapt_effort, reads_effort
from rekindle.formats.rendering.system_messages import SYSTEM_ROLES, place_system
from rekindle.formats.rendering.template import template_variables
from rekindle.formats.rendering.told_tools import calls_as_text, tell_tools

ROLES: Final = ("system", "user", "assistant", "tool", "developer")
"""Roles of most chat templates."""
MOST_CHARACTERS: Final = 1 << 22
"""Most characters of all tools of a conversation; their text is written in one step, for which all threads wait."""
_MOST_PARTS: Final = 1 << 17
"""Values of tools looked at; bodies of requests have fewer."""
LONGEST_ROLE: Final = 64
"""Most characters of a role."""
_OPEN_END = "THE-FINAL-MESSAGE-GOES-ON-HERE "
"""Marker appended to the final message, to find its end in the rendered text.

If a template trims contents, the space after the word is removed, too.
"""


def render(
    messages: Sequence[Mapping[str, Any]],
    template: str | None,
    bos_token: str | None = None,
    eos_token: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
) -> str:
    """Render a conversation in the model's training format, exactly as transformers does.

    Args:
        messages: mappings with a "role" and a "content", oldest first; other keys reach the template too. A content is
            a str, or a list of parts: {"type": "text", "text": ...}, {"type": "image"} and {"type": "video"}. If the
            template does not support one form for a role, the other form is used, as in vLLM: the text as one part, or
            the parts joined by newlines. An assistant message with "tool_calls" may have no content. `place_system`
            finds places for system and developer messages.
        template: Jinja source. It runs in a sandbox, because it comes with the model.
        bos_token, eos_token: token texts, as template variables; None leaves one undefined.
        tools: JSON schemas of the available functions, as the template variable `tools`. The system message has them as
            JSON if the template has no such variable.
        variables: other template variables by name. They override `add_generation_prompt` (default True: end with the
            start of the assistant's answer), `documents` (default None), and the two tokens. A `reasoning_effort` is
            put into the template's words, see `adapt_effort`. See also `unread_variables`.
        continue_final_message: end with the content of the last message, for generation to continue it.

    Raises:
        InvalidRequest: there is no template, an argument is malformed, or the template rejects the arguments.
    """
    if template is None:
        raise InvalidRequest.of(
            "chat_template",
            "the model has no chat template, so messages cannot be rendered to a prompt: pass the prompt as str, or "
            'open the model with the template of its family, as in open(..., chat_template="chatml")',
        )
    check_messages(messages)
    if tools is not None:
        check_tools(tools)
    if variables is not None:
        check_variables(variables)
    if continue_final_message:
        check_continuable(messages, variables or {})
    _check_roles(messages, template)
    chat_template = ChatTemplate(template, bos_token, eos_token)
    variables = adapt_effort(variables or {}, chat_template)
    if not lists_tools(template):
        messages, tools = _with_tools_as_text(messages, tools, template), None
    messages = place_system(messages, chat_template)
    adapted = [adapt_content(adapt_arguments(message, chat_template), chat_template) for message in messages]
    if not continue_final_message:
        return chat_template.render(adapted, tools, variables)
    open_variables = {**variables, "add_generation_prompt": False}
    rendered = chat_template.render(append_text(adapted, _OPEN_END), tools, open_variables)
    return _cut_at_marker(rendered, _last_text(adapted))


def lists_tools(template: str) -> bool:
    """Return True if a chat template has a place for tools."""
    return "tools" in template_variables(template)


def _with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, template: str
) -> Sequence[Mapping[str, Any]]:
    """Return messages with tools, and with calls unless the template writes them, as text."""
    from rekindle.formats.responses.grammars.call_forms import call_form_in

    form = call_form_in(template)
    if "tool_calls" not in template and any(message.get("tool_calls") for message in messages):
        messages = calls_as_text(messages, form)
    return tell_tools(messages, tools, form) if tools else messages


def _check_roles(messages: Sequence[Mapping[str, Any]], template: str) -> None:
    """Refuse a misspelt role. Other roles are left to the template, in case it renders them.

    Raises:
        InvalidRequest: a role is not in the template, and almost a known one.
    """
    for place, message in enumerate(messages):
        role = message["role"]
        if role not in ROLES and role not in template and (close := get_close_matches(role.lower(), ROLES, n=1)):
            raise InvalidRequest.of(
                "prompt", f"messages[{place}] has the unknown role {role!r}; did you mean {close[0]!r}?"
            )


def append_text(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """Return the messages with text appended to the content of the last message."""
    *others, last = messages
    content: Any = last["content"]
    if isinstance(content, str):
        return [*others, {**last, "content": content + text}]
    *before, part = content
    return [*others, {**last, "content": [*before, {**part, "text": part["text"] + text}]}]


def _last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    content: Any = messages[-1]["content"]
    text: str = content if isinstance(content, str) else content[-1]["text"]
    return text


def _cut_at_marker(rendered: str, text: str) -> str:
    """Return a rendered conversation up to the marker after the last text."""
    word = _OPEN_END.rstrip()
    at = rendered.rfind(word)
    if at < 0 or text.strip() not in rendered:
        raise InvalidRequest(
            "the model's chat template does not render the content of the final message unchanged, so it cannot be "
            "continued: render it yourself, starting from session.render(), and pass the prompt as str with "
            "add_special_tokens=False"
        )
    return rendered[:at] if rendered.startswith(_OPEN_END, at) else rendered[:at].rstrip()


def check_messages(messages: object) -> None:
    """Check the type of `messages`: a list of mappings with a role and a content.

    Raises:
        InvalidRequest: an element is malformed; the error names it.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequest.of(
            "prompt", f"messages must be a list of {{role, content}} mappings, got {type(messages).__name__}"
        )
    if not messages:
        raise InvalidRequest.of("prompt", "messages must have at least one message, got an empty list")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequest.of(
                "prompt", f"messages[{place}] must be a mapping with role and content, got {type(message).__name__}"
            )
        role = message.get("role")
        if isinstance(role, str) and len(role) > LONGEST_ROLE:  # the forms of each role in a template are remembered
            raise InvalidRequest.of(
                "prompt", f"messages[{place}] has a role of {len(role)} characters: expected one such as 'user'"
            )
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list | tuple):
            raise InvalidRequest.of(
                "prompt", f"messages[{place}]['tool_calls'] must be a list of calls, got {preview(calls)}"
            )
        calls_tools = role == "assistant" and calls
        for key in ("role", "content"):
            if key == "content" and message.get(key) is None and calls_tools:
                continue
            if key not in message:
                raise InvalidRequest.of(
                    "prompt", f"messages[{place}] has no {key!r}; it has {sorted(map(str, message))}"
                )
            if key == "content" and isinstance(message[key], list | tuple):
                _check_parts(f"messages[{place}]['content']", message[key], role not in SYSTEM_ROLES)
            elif not isinstance(message[key], str):
                raise InvalidRequest.of(
                    "prompt", f"messages[{place}][{key!r}] must be str, got {type(message[key]).__name__}"
                )


def _check_parts(name: str, parts: Sequence[object], may_have_images: bool) -> None:
    if not parts:
        raise InvalidRequest.of("prompt", f"{name} must have at least one part, got an empty list")
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("image", "video") and may_have_images:
            continue
        if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
            received = f"one of type {preview(kind, 40)}" if kind not in (None, "text") else preview(part)
            images = " or {'type': 'image', 'image': ...}" if may_have_images else ""
            raise InvalidRequest.of(
                "prompt", f"{name}[{place}] must be {{'type': 'text', 'text': str}}{images}, got {received}"
            )


def copy_messages(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return copies of messages and their parts, independent of later changes by the caller."""
    return [
        {**message, "content": [dict(part) for part in content]}
        if isinstance(content := message.get("content"), list | tuple)
        else dict(message)
        for message in messages
    ]


def check_continuable(messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> None:
    """Reject a conversation whose last message cannot be continued.

    Raises:
        InvalidRequest: the message has no content, or the variables request the start of another message.
    """
    if messages[-1].get("content") is None:
        raise InvalidRequest("continue_final_message=True needs a final message with a content, and it has none")
    content: Any = messages[-1]["content"]
    if not isinstance(content, str) and content[-1].get("type") != "text":
        raise InvalidRequest("continue_final_message=True needs a final message that ends with text, not with an image")
    if variables.get("add_generation_prompt"):
        raise InvalidRequest(
            "continue_final_message=True continues the final message, and add_generation_prompt=True starts another: "
            "pass one of the two"
        )


def check_tools(tools: object) -> None:
    """Check the type of `tools`: a list of JSON schemas.

    Raises:
        InvalidRequest: an element is malformed; the error names it.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest(f"tools must be a list of functions or JSON schemas, got {_describe(tools)}")
    if not tools:
        raise InvalidRequest("tools must have at least one tool, got an empty list; leave tools out for none")
    if _characters(tools) > MOST_CHARACTERS:
        raise InvalidRequest(
            f"tools have more than {MOST_CHARACTERS} characters: give fewer tools, or describe them less"
        )
    for place, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequest(f"tools[{place}] must be a function or the JSON schema of one, got {_describe(tool)}")
        try:
            json.dumps(tool, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"tools[{place}] cannot be written as JSON: {error}") from error


def _characters(value: object) -> int:
    """Return the number of characters in the texts of a value, or of some texts if there are very many."""
    rest, size, parts = [value], 0, 0
    while rest and parts <= _MOST_PARTS:
        part = rest.pop()
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, Mapping | Sequence):
            parts += len(part)
            rest += part.values() if isinstance(part, Mapping) else part
    return size


def check_variables(variables: object) -> None:
    """Check the type of `variables`: a mapping of names to values for a chat template.

    Raises:
        InvalidRequest: the type is wrong, or a name is reserved for an argument, such as the messages.
    """
    if not isinstance(variables, Mapping):
        raise InvalidRequest(
            f"chat_template_kwargs must be a mapping of variables for the chat template, got {type(variables).__name__}"
        )
    for name in variables:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidRequest(f"chat_template_kwargs must map variables to values, got the key {preview(name)}")
        if name in _ARGUMENTS:
            raise InvalidRequest(f"chat_template_kwargs cannot set {name!r}: {_ARGUMENTS[name]}")


_ARGUMENTS = {
    "messages": "the messages are the prompt",
    "tools": "give them as the argument tools=",
    "continue_final_message": "give it as an argument of the call",
}


def _describe(value: object) -> str:
    if isinstance(value, Mapping):
        return f"one {type(value).__name__}; put it in a list"
    if callable(value):
        return f"the Python object {getattr(value, '__name__', value)!r:.80}; give the JSON schema that describes it"
    return type(value).__name__


def unread_variables(variables: Mapping[str, Any], *templates: str | None) -> dict[str, str]:
    """Return a note for each variable without a place in the chat templates, by name.

    Raises:
        InvalidRequest: a template cannot be parsed.
    """
    if not variables:
        return {}
    variables_read = frozenset[str]().union(*(template_variables(template) for template in templates if template))
    others = ", ".join(sorted(variables_read - _BUILTINS)) or "nothing"
    names = {*variables_read, "add_generation_prompt", *({EFFORT} if reads_effort(variables, variables_read) else ())}
    return {
        name: f"the model's chat template does not read {name!r}; besides the messages it reads {others}"
        for name in sorted(set(variables) - names)
    }


_BUILTINS = frozenset({"messages", "raise_exception", "strftime_now"})
