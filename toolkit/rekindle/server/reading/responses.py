"""The body of a response: OpenAI's later form of a chat completion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.request.checks import preview
from rekindle.core.text.response import MessageForm
from rekindle.server.reading.call import NEUTRAL, Call, Streaming, sampling
from rekindle.server.reading.chat import listed_tools, message
from rekindle.server.reading.constraint import ANY_OBJECT
from rekindle.server.reading.fields import Fields

ALIKE: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "return_tokens_as_token_ids": (False,),
    "background": (False,),
    "include": ([], ["reasoning.encrypted_content"]),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
TOLD = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools")
"""Fields of the body that the response has too."""
EARLIER = ("previous_response_id", "conversation")
"""Fields of servers that store what was said."""
TEXTS = ("input_text", "output_text", "text")
"""The types of parts of a content that are text."""


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """A response that is asked for.

    Attributes:
        call: of the session.
        one_call: whether at most one tool call is given.
        told: fields of the body that the response has too.
    """

    call: Call
    one_call: bool
    told: Mapping[str, Any]


def response_call(body: Fields, form: MessageForm) -> ResponseCall:
    """Return the call that a body asks for.

    Args:
        form: how the model's chat template reads messages.

    Raises:
        Refused: a field cannot be read, or might change the answer and is not known.
    """
    for name in EARLIER:
        if body.any(name) is not None:
            body.refuse(name, "is about what was said before, which is not kept here; give all of it as input")
    told = body.peeked((*TOLD, "text", "top_p"))
    messages = _instructed(body, _messages(body))
    ask, fields = sampling(body, "max_output_tokens")
    ask.setdefault("max_tokens", None)
    ask |= _format(body) | _tools(body) | _reasoning(body)
    one_call = not body.flag("parallel_tool_calls", True)
    stream, options = body.flag("stream"), body.within("stream_options")
    if options is not None:
        options.finish({}, ("include_obfuscation",))
    prompt = [message(each, form) for each in messages]
    fields["prompt"] = "input"
    body.finish(ALIKE)
    return ResponseCall(Call(prompt, ask, None, 1, fields, Streaming() if stream else None), one_call, told)


def _instructed(body: Fields, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    instructions = body.take("instructions", str)
    return messages if instructions is None else [{"role": "system", "content": instructions}, *messages]


def _messages(body: Fields) -> list[dict[str, Any]]:
    given = body.any("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        body.refuse("input", f"must be a text or a list of messages and other items, not empty, got {preview(given)}")
    messages: list[dict[str, Any]] = []
    for each in given:
        _add(body, messages, {name: value for name, value in each.items() if value is not None})
    for each in messages:
        if _goes_on(each):  # with nothing: the reasoning is all that the assistant said
            each["content"] = ""
    return messages


def _add(body: Fields, messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add an item to the messages; what the assistant said in several items is one message."""
    match item.get("type", "message"):
        case "message":
            role, content = item.get("role"), _content(body, item.get("content"))
            if role == "assistant" and messages and _goes_on(messages[-1]):
                messages[-1]["content"] = content
            else:
                messages.append({"role": role, "content": content})
        case "reasoning":
            text = "".join(str(part.get("text", "")) for part in item.get("content", ()) if isinstance(part, dict))
            if text:
                _assistant(messages)["reasoning"] = text
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _content(body, item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case kind:
            body.refuse("input", f"has an item of type {kind!r:.80}, which is not served")


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of the assistant that is last, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _goes_on(last: Mapping[str, Any]) -> bool:
    """Tell whether the last message has the assistant's reasoning alone so far."""
    return last["role"] == "assistant" and last["content"] is None and "tool_calls" not in last


def _content(body: Fields, content: Any) -> Any:
    """Return a content, of whose parts each is a text, as chat templates read them."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in TEXTS:
            body.refuse("input", f"has a part that is no text: {preview(part)}")
        parts.append({"type": "text", "text": part.get("text")})
    return parts


def _format(body: Fields) -> dict[str, Any]:
    """Return the keyword of what the text is held to."""
    text = body.within("text")
    if text is None:
        return {}
    said = text.within("format")
    text.finish({"verbosity": ("medium",)})
    if said is None:
        return {}
    match said.take("type", str):
        case "text":
            made: dict[str, Any] = {}
        case "json_object":
            made = {"json_schema": ANY_OBJECT}
        case "json_schema":
            schema = said.take("schema", dict)
            if schema is None:
                said.needed("schema")
            made = {"json_schema": schema}
        case kind:
            said.refuse("type", f"must be text, json_object or json_schema, got {kind!r:.80}")
    said.finish({}, ("name", "description", "strict"))
    return made


def _tools(body: Fields) -> dict[str, Any]:
    tools, choice = listed_tools(body)
    if not tools:
        return {}
    for each in tools:
        if not isinstance(each, dict) or each.get("type") != "function" or not isinstance(each.get("name"), str):
            body.refuse("tools", f"must each be {{'type': 'function', 'name': ...}}, got {preview(each)}")
    match choice:
        case None | "auto" | "none" | "required":
            named = choice or "auto"
        case {"type": "function", "name": str(named)}:
            pass
        case _:
            body.refuse("tool_choice", f"must be auto, none, required or one function, got {preview(choice)}")
    return {"tools": [_as_chats_have_it(each) for each in tools], "tool_choice": named}


def _as_chats_have_it(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _reasoning(body: Fields) -> dict[str, Any]:
    said = body.within("reasoning")
    effort = None if said is None else said.take("effort", str)
    if said is not None:
        said.finish({}, ("summary", "generate_summary"))
    variables: Sequence[tuple[str, Any]] = [("reasoning_effort", effort)] if effort is not None else []
    return {"chat_template_kwargs": {**(body.take("chat_template_kwargs", dict) or {}), **dict(variables)} or None}
