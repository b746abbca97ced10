"""Turning messages into a prompt, by the model's own chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.text.template import compiled, loops_over_parts, names_read

_OPEN_END = "THE-FINAL-MESSAGE-GOES-ON-HERE "
"""Marks where an open message ends. Where a template trims its contents, the space behind the word is gone."""


def render(
    messages: Sequence[Mapping[str, Any]],
    template: str | None,
    bos_token: str | None = None,
    eos_token: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
) -> str:
    """Write a conversation as the model was trained to read it, exactly as transformers would.

    Args:
        messages: mappings with a "role" and a "content", oldest first; other keys reach the template too. A content is
            a str, or a list of {"type": "text", "text": ...} parts. Where the template cannot write the one for a role,
            it gets the other: the text as a part, or the texts joined by line ends, as in vLLM. A message of the role
            "assistant" that has "tool_calls" may have no content.
        template: Jinja source; it runs in a sandbox, because it came with the model.
        bos_token, eos_token: the texts of these tokens, which the template may read; None leaves them undefined.
        tools: JSON schemas of the functions that the model may call; the template reads them as `tools`.
        variables: other variables of the template, by name. They overrule `add_generation_prompt` (default True: end
            with the start of the assistant's answer), `documents` (default None), and the two tokens.
        continue_final_message: end with the content of the last message, so that what is generated goes on with it.

    Raises:
        InvalidRequest: there is no template, an argument is malformed, or the template rejects them.
    """
    if template is None:
        raise InvalidRequest(
            "the model has no chat template, so messages cannot be turned into a prompt: pass the prompt as str"
        )
    check_messages(messages)
    if tools is not None:
        check_tools(tools)
    if variables is not None:
        check_variables(variables)
    if continue_final_message:
        check_open(messages, variables or {})
    _check_read(template, tools, variables or {})
    shown = [_fitting(message, template, bos_token, eos_token) for message in messages]
    if not continue_final_message:
        return _rendered(shown, template, bos_token, eos_token, tools, variables or {})
    closed = {**(variables or {}), "add_generation_prompt": False}
    marked = _rendered(with_more(shown, _OPEN_END), template, bos_token, eos_token, tools, closed)
    return _cut(marked, _last_text(shown))


def with_more(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """Return the messages with some text added to the end of the last."""
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


def _cut(marked: str, text: str) -> str:
    """Return what a template made of a conversation up to the mark that was put behind the last text."""
    word = _OPEN_END.rstrip()
    at = marked.rfind(word)
    if at < 0 or text.strip() not in marked:
        raise InvalidRequest(
            "the model's chat template does not write the content of the final message as it is, so it cannot be "
            "continued: render it yourself, with session.render() as a start, and give the prompt as str, with "
            "add_special_tokens=False"
        )
    return marked[:at] if marked.startswith(_OPEN_END, at) else marked[:at].rstrip()


def _fitting(
    message: Mapping[str, Any], template: str, bos_token: str | None, eos_token: str | None
) -> Mapping[str, Any]:
    """Return a message whose content is a text or parts, whichever of the two a template writes for its role.

    Raises:
        InvalidRequest: it writes neither.
    """
    content, role = message.get("content"), message["role"]
    if not content:
        return message
    in_parts = not isinstance(content, str)
    forms = _forms_of(template, role, bos_token, eos_token)
    if forms is None:  # which role may stand where is not known: look at how the template reads contents
        if not in_parts or loops_over_parts(template):
            return message
    elif not forms:
        if not _forms_of(template, "user", bos_token, eos_token):  # it writes something else than contents
            return message
        raise InvalidRequest(
            f"the model's chat template leaves out what messages of the role {role!r} say: write it into a message of "
            "the role 'user'"
        )
    elif in_parts in forms:
        return message
    if in_parts:
        return {**message, "content": "\n".join(part["text"] for part in content)}
    return {**message, "content": [{"type": "text", "text": content}]}


_PROBE = "PROBE"


@lru_cache(maxsize=256)
def _forms_of(template: str, role: str, bos_token: str | None, eos_token: str | None) -> frozenset[bool] | None:
    """Return the forms of contents that a template writes for a role: False for a text, True for parts.

    Returns:
        None if it rejects a message of the role in each place that is tried.
    """
    forms, rejected = set[bool](), 0
    for in_parts in (False, True):
        text = _probed(template, role, [{"type": "text", "text": _PROBE}] if in_parts else _PROBE, bos_token, eos_token)
        rejected += text is None
        if text is None or _PROBE not in text:
            continue
        # Parts that a template joins to another text are written as Python or JSON write them.
        if not in_parts or not re.search(r"['\"]text['\"]:", text):
            forms.add(in_parts)
    return None if rejected == 2 else frozenset(forms)


def _probed(template: str, role: str, content: Any, bos_token: str | None, eos_token: str | None) -> str | None:
    """Render a short conversation with a message of a role; return None if the template rejects each."""
    user: Mapping[str, Any] = {"role": "user", "content": "x"}
    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    probe: Mapping[str, Any] = {"role": role, "content": content, "name": "f", "tool_call_id": _CALL["id"]}
    spoken = {"role": role, "content": content}
    for messages in ([user, called, probe], [spoken, user], [user, spoken], [spoken]):
        if (role == "tool") != (called in messages):
            continue
        try:
            return _rendered(messages, template, bos_token, eos_token, None, {"add_generation_prompt": False})
        except InvalidRequest:
            continue
    return None


_CALL: Final = {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {}}}


def _rendered(
    messages: Sequence[Mapping[str, Any]],
    template: str,
    bos_token: str | None,
    eos_token: str | None,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> str:
    from jinja2 import TemplateError

    # A token that the model lacks stays undefined, because templates test for that.
    tokens = {name: text for name, text in (("bos_token", bos_token), ("eos_token", eos_token)) if text is not None}
    defaults = {"add_generation_prompt": True, "documents": None, **tokens}
    try:
        return compiled(template).render({**defaults, **variables, "messages": messages, "tools": tools})
    except TemplateError as error:
        raise InvalidRequest.of("prompt", f"the model's chat template rejects the messages: {error}") from error
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise InvalidRequest.of(
            "prompt",
            f"the model's chat template cannot take the messages ({type(error).__name__}: {error}): "
            "check that it supports their roles and keys, the tools and the variables",
        ) from error


def check_messages(messages: object) -> None:
    """Check that `messages` is a list of mappings with a role and a content.

    Raises:
        InvalidRequest: it is something else; the error says where.
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
        calls_tools = message.get("role") == "assistant" and message.get("tool_calls")
        for key in ("role", "content"):
            if key == "content" and message.get(key) is None and calls_tools:
                continue
            if key not in message:
                raise InvalidRequest.of(
                    "prompt", f"messages[{place}] has no {key!r}; it has {sorted(map(str, message))}"
                )
            if key == "content" and isinstance(message[key], list | tuple):
                _check_parts(f"messages[{place}]['content']", message[key])
            elif not isinstance(message[key], str):
                raise InvalidRequest.of(
                    "prompt", f"messages[{place}][{key!r}] must be str, got {type(message[key]).__name__}"
                )


def _check_parts(name: str, parts: Sequence[object]) -> None:
    if not parts:
        raise InvalidRequest.of("prompt", f"{name} must have at least one part, got an empty list")
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
            came = f"one of type {kind!r:.40}" if kind not in (None, "text") else f"{part!r:.80}"
            raise InvalidRequest.of(
                "prompt",
                f"{name}[{place}] must be {{'type': 'text', 'text': str}}, because only text is read; got {came}",
            )


def copied(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages that stay as they are when their giver changes a message or a part of one."""
    return [
        {**message, "content": [dict(part) for part in content]}
        if isinstance(content := message.get("content"), list | tuple)
        else dict(message)
        for message in messages
    ]


def check_open(messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> None:
    """Check that the last message can be left open.

    Raises:
        InvalidRequest: it has no content, or the variables ask for the start of another message.
    """
    if messages[-1].get("content") is None:
        raise InvalidRequest("continue_final_message=True needs a final message with a content, and it has none")
    if variables.get("add_generation_prompt"):
        raise InvalidRequest(
            "continue_final_message=True goes on with the final message, and add_generation_prompt=True begins "
            "another: give one of the two"
        )


def check_tools(tools: object) -> None:
    """Check that `tools` is a list of JSON schemas.

    Raises:
        InvalidRequest: it is something else; the error says where.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequest(f"tools must be a list of functions or JSON schemas, got {_described(tools)}")
    if not tools:
        raise InvalidRequest("tools must have at least one tool, got an empty list; leave tools out for none")
    for place, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequest(f"tools[{place}] must be a function or the JSON schema of one, got {_described(tool)}")
        try:
            json.dumps(tool, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"tools[{place}] cannot be written as JSON: {error}") from error


def check_variables(variables: object) -> None:
    """Check that `variables` is a mapping of names to values for a chat template.

    Raises:
        InvalidRequest: it is something else, or it names the messages or the tools.
    """
    if not isinstance(variables, Mapping):
        raise InvalidRequest(
            f"chat_template_kwargs must be a mapping of variables for the chat template, got {type(variables).__name__}"
        )
    for name in variables:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidRequest(f"chat_template_kwargs must map variables to values, got the key {name!r:.80}")
        if name in _ARGUMENTS:
            raise InvalidRequest(f"chat_template_kwargs cannot set {name!r}: {_ARGUMENTS[name]}")


_ARGUMENTS = {
    "messages": "the messages are the prompt",
    "tools": "give them as the argument tools=",
    "continue_final_message": "give it as an argument of the call",
}


def _described(value: object) -> str:
    if isinstance(value, Mapping):
        return f"one {type(value).__name__}; put it in a list"
    if callable(value):
        return f"the Python object {getattr(value, '__name__', value)!r:.80}; give the JSON schema that describes it"
    return type(value).__name__


def _check_read(template: str, tools: object, variables: Mapping[str, Any]) -> None:
    """Check that the template reads the tools and variables: otherwise a misspelt name would have no effect.

    Raises:
        InvalidRequest: it does not read one of them.
    """
    read = names_read(template)
    if tools is not None and "tools" not in read:
        raise InvalidRequest("the model's chat template has no place for tools: write them into a message instead")
    unread = sorted(set(variables) - read - {"add_generation_prompt"})
    if unread:
        raise InvalidRequest(
            f"the model's chat template does not read {unread[0]!r}; besides the messages it reads "
            f"{', '.join(sorted(read - _GIVEN)) or 'nothing'}"
        )


_GIVEN = frozenset({"messages", "raise_exception", "strftime_now"})
