"""Bodies of responses, OpenAI's successor of chat completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.request.checks import preview
from rekindle.core.text.response import MessageForm
from rekindle.server.reading.call import NEUTRAL, Call, Streaming, sampling
from rekindle.server.reading.chat import message
from rekindle.server.reading.constraint import ANY_OBJECT
from rekindle.server.reading.fields import Fields
from rekindle.server.reading.tools import CustomTool, read_tools, single_call

NEUTRAL_FIELDS: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "return_tokens_as_token_ids": (False,),
    "background": (False,),
}
ECHO_FIELDS = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "temperature",
    "tool_choice",
    "tools",
)
"""Fields of the body repeated in the response."""
LOGPROBS = "message.output_text.logprobs"
INCLUDES = (LOGPROBS, "reasoning.encrypted_content")
"""Parts of a response on demand; a reasoning item has its text in any case."""
TEXT_PARTS = ("input_text", "output_text", "text")
"""Types of content parts with text."""


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request for a response.

    Attributes:
        call: the call of the session.
        one_call: whether the answer has at most one tool call.
        echo: the fields of the body repeated in the response.
        items: the items of the input, without those of earlier responses.
        stored: whether the response is kept for later requests.
        logprobs: whether the answer has the log-probabilities of its tokens.
        previous: the id of the response before this one, or None.
        custom: the custom tools by name.
    """

    call: Call
    one_call: bool
    echo: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    stored: bool
    logprobs: bool
    previous: str | None
    custom: Mapping[str, CustomTool]


def read_previous(body: Fields) -> str | None:
    """Return the id of the response before the input, without taking the field; None if absent."""
    previous = body.peek(["previous_response_id"]).get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        body.refuse("previous_response_id", f"must be a string, got {preview(previous)}")
    return previous


def read_response(body: Fields, form: MessageForm, earlier: Sequence[Mapping[str, Any]] = ()) -> ResponseRequest:
    """Return the response requested by a body.

    Args:
        body: the fields of the body.
        form: the message format of the model's chat template.
        earlier: the items of the conversation before the input.

    Raises:
        ApiError: a field is invalid, or is unknown and might change the answer.
    """
    if body.any("conversation") is not None:
        body.refuse("conversation", "is not served: name the last response with previous_response_id")
    previous = body.take("previous_response_id", str)
    echo = body.peek((*ECHO_FIELDS, "text", "top_p", "store"))
    items = _items(body)
    messages = _with_instructions(body, _messages(body, [*earlier, *items]))
    options, fields = sampling(body, "max_output_tokens")
    options.setdefault("max_tokens", None)
    tools = read_tools(body, nested=False)
    options |= {**_format(body), **tools.options, **_reasoning(body)}
    one_call = not body.flag("parallel_tool_calls", True)
    options |= single_call(one_call)
    stream, stream_options = body.flag("stream"), body.take_fields("stream_options")
    if stream_options is not None:
        stream_options.finish({}, ("include_obfuscation",))
    prompt = [message(each, form) for each in messages]
    fields["prompt"] = "input"
    logprobs = _logprobs(body, options, fields)
    options = {**_truncation(body), **options}
    call = Call(prompt, options, None, 1, fields, Streaming() if stream else None)
    stored = body.flag("store", True)
    body.finish(NEUTRAL_FIELDS)
    return ResponseRequest(call, one_call, echo, items, stored, logprobs, previous, tools.custom)


def _logprobs(body: Fields, options: dict[str, Any], fields: dict[str, str]) -> bool:
    """Take the fields about log-probabilities into the keywords of the session, and return whether any are wanted."""
    include, top = body.take("include", list) or [], body.take("top_logprobs", int)
    for each in include:
        if each not in INCLUDES:
            body.refuse("include", f"has {preview(each)}, and this server has {', '.join(INCLUDES)}")
    needs_them = top is not None or LOGPROBS in include
    if needs_them and options.get("tools"):
        body.refuse("top_logprobs", "is not served together with tools: use chat completions")
    if needs_them:
        options["logprobs"], fields["logprobs"] = top or 0, "top_logprobs"
    return needs_them


def _with_instructions(body: Fields, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    instructions = body.take("instructions", str)
    return messages if instructions is None else [{"role": "system", "content": instructions}, *messages]


def _items(body: Fields) -> list[Mapping[str, Any]]:
    """Take the input as items."""
    items = body.any("input")
    if isinstance(items, str):
        return [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list) or not items or not all(isinstance(each, dict) for each in items):
        body.refuse("input", f"must be a text or a non-empty list of messages and other items, got {preview(items)}")
    return items


def _messages(body: Fields, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for each in items:
        _add(body, messages, {name: value for name, value in each.items() if value is not None})
    if not messages:
        body.refuse("input", "must have a message, and has reasoning without a text alone")
    for each in messages:
        if _has_only_reasoning(each):
            each["content"] = ""
    return messages


def _add(body: Fields, messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add an item to the messages; adjacent items of the assistant become one message."""
    match item.get("type", "message"):
        case "message":
            role, content = item.get("role"), _content(body, item.get("content"))
            if role == "assistant" and messages and _has_only_reasoning(messages[-1]):
                messages[-1]["content"] = content
            else:
                messages.append({"role": role, "content": content})
        case "reasoning":
            content = item.get("content", [])
            if not isinstance(content, list):
                body.refuse("input", f"has reasoning whose content must be a list, got {preview(content)}")
            text = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
            if text:
                _assistant(messages)["reasoning"] = text
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "custom_tool_call":
            custom = {"name": item.get("name"), "input": item.get("input")}
            call = {"id": item.get("call_id"), "type": "custom", "custom": custom}
            _assistant(messages).setdefault("tool_calls", []).append(call)
        case "function_call_output" | "custom_tool_call_output":
            content = _content(body, item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case kind:
            body.refuse("input", f"has an item of type {kind!r:.80}, and this type is not served")


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last message if it is the assistant's, or append a new one and return it."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _has_only_reasoning(message: Mapping[str, Any]) -> bool:
    """Return True if a message is the assistant's and has only reasoning so far."""
    return message["role"] == "assistant" and message["content"] is None and "tool_calls" not in message


def _content(body: Fields, content: Any) -> Any:
    """Return content in the format of chat templates, with text parts only."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
            body.refuse("input", f"has a part other than text: {preview(part)}")
        parts.append({"type": "text", "text": part.get("text")})
    return parts


def _format(body: Fields) -> dict[str, Any]:
    """Take the constraint on the text, as a keyword of the session; empty without one."""
    text = body.take_fields("text")
    if text is None:
        return {}
    text_format = text.take_fields("format")
    text.finish({"verbosity": ("medium",)})
    if text_format is None:
        return {}
    match text_format.take("type", str):
        case "text":
            options: dict[str, Any] = {}
        case "json_object":
            options = {"json_schema": ANY_OBJECT}
        case "json_schema":
            options = {"json_schema": text_format.require("schema", dict)}
        case kind:
            text_format.refuse("type", f"must be text, json_object or json_schema, got {kind!r:.80}")
    text_format.finish({}, ("name", "description", "strict"))
    return options


def _truncation(body: Fields) -> dict[str, Any]:
    """Take the wish to cut a prompt too long for the model, as a keyword of the session; empty without it."""
    truncation = body.take("truncation", str)
    if truncation not in (None, "auto", "disabled"):
        body.refuse("truncation", f"must be auto or disabled, got {truncation!r:.80}")
    return {"truncate_prompt_tokens": -1} if truncation == "auto" else {}


def _reasoning(body: Fields) -> dict[str, Any]:
    """Take the variables of the chat template, with the effort among them, as a keyword of the session."""
    variables, reasoning = dict(body.take("chat_template_kwargs", dict) or {}), body.take_fields("reasoning")
    if reasoning is not None:
        effort = reasoning.take("effort", str)
        if effort is not None:
            variables["reasoning_effort"] = effort
        reasoning.finish({}, ("summary", "generate_summary"))
    return {"chat_template_kwargs": variables or None}
