"""Messages and options of chat templates in bodies, in OpenAI's form."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.request.checks import preview
from rekindle.formats.rendering.efforts import EFFORT, SWITCHES
from rekindle.formats.response import MessageForm
from rekindle.server.common.fields import Fields
from rekindle.server.common.pictures import check_count, content_in
from rekindle.server.common.tools.custom import INPUT
from rekindle.server.common.tools.offer import read_tools

REASONING = ("reasoning_content", "reasoning")
"""Keys of a message's reasoning in bodies of clients."""


def messages_in(
    sources: Sequence[Mapping[str, Any]], form: MessageForm, param: str = "messages"
) -> list[dict[str, Any]]:
    """Convert messages from OpenAI's format to the format of the chat template.

    Raises:
        ApiError: an image is malformed or out of bounds, or there are too many.
    """
    results = [message(each, form, param, f"{param}[{place}]") for place, each in enumerate(sources)]
    check_count(results, param)
    return results


def message(
    source: Mapping[str, Any], form: MessageForm, param: str = "messages", place: str = "a message"
) -> dict[str, Any]:
    """Convert a message from OpenAI's format to the format of the chat template.

    Args:
        source: the message.
        form: the message format of the model's chat template.
        param: the field of the body.
        place: the place of the message in the body, for errors.

    Raises:
        ApiError: an image is malformed or out of bounds.
    """
    result = {name: value for name, value in source.items() if value is not None or name == "content"}
    if result.get("role") == "developer":  # most chat templates only know the role's former name
        result["role"] = "system"
    if isinstance(content := result.get("content"), list):
        result["content"] = content_in(content, param, f"{place}.content")
    calls = result.get("tool_calls")
    if isinstance(calls, list):
        result["tool_calls"] = [_tool_call(each, form) for each in calls]
        if not calls:
            del result["tool_calls"]
        else:
            result.setdefault("content", None)
    reasoning = next((result.pop(name) for name in REASONING if name in result), None)
    if reasoning is not None and form.reasoning_key is not None:
        result[form.reasoning_key] = reasoning
    if result.get("content") is None:
        _add_content(result, has_reasoning=reasoning is not None)
    return result


def _add_content(message: dict[str, Any], *, has_reasoning: bool) -> None:
    """Add the content that other fields of a message are in place of: a refusal, reasoning alone, or no result."""
    if isinstance(message.get("refusal"), str):
        message["content"] = message["refusal"]
    elif message.get("role") == "tool" or (has_reasoning and "tool_calls" not in message):
        message["content"] = ""


def _tool_call(call: Any, form: MessageForm) -> Any:
    """Return a tool call with parsed arguments, unless the chat template takes JSON text or the JSON is invalid."""
    if isinstance(call, dict) and isinstance(custom := call.get("custom"), dict):
        text = json.dumps({INPUT: custom.get("input")}, ensure_ascii=False)
        call = {"id": call.get("id"), "type": "function", "function": {"name": custom.get("name"), "arguments": text}}
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if form.arguments_as_text or not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    try:
        values = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": values}} if isinstance(values, dict) else call


def tools_in(body: Fields) -> dict[str, Any]:
    """Take the tools and the tool choice, as keywords of the session; empty without tools."""
    return dict(read_tools(body, nested=True).options)


def _thinking(body: Fields) -> dict[str, Any]:
    """Take the wish for reasoning, in the forms of other servers, as variables of the chat template."""
    thinks, thinking = body.take("enable_thinking", bool), body.take_fields("thinking")
    if thinking is not None:
        kind = thinking.take("type", str)
        if kind not in ("adaptive", "auto", "disabled", "enabled"):
            thinking.refuse("type", f"must be enabled, disabled, adaptive or auto, got {preview(kind)}")
        thinking.finish({}, ("budget_tokens",))
        thinks = kind == "enabled" if kind in ("disabled", "enabled") else thinks
    if thinks is None:
        return {}
    return dict.fromkeys(SWITCHES, True) if thinks else {EFFORT: "none"}


def template_in(body: Fields) -> dict[str, Any]:
    """Take the options of the chat template, as keywords of the session."""
    variables = dict(body.take("chat_template_kwargs", dict) or {})
    for name in ("reasoning_effort", "add_generation_prompt"):
        value = body.any(name)
        if value is not None:
            variables[name] = value
    variables = {**_thinking(body), **variables}
    stays_open = body.flag("continue_final_message")
    if stays_open and variables.get("add_generation_prompt") is False:
        del variables["add_generation_prompt"]  # required by vLLM, implied here
    return {"chat_template_kwargs": variables or None, "continue_final_message": stays_open}


@dataclass(frozen=True, slots=True)
class ModelTemplate:
    """The chat template of a model, as far as requests depend on it.

    Attributes:
        form: the message format.
        variables: the names of its variables.
    """

    form: MessageForm
    variables: Collection[str]


def thinking_variables(thinks: bool, variables: Collection[str]) -> dict[str, Any]:
    """Return the variables of a chat template that turn its thinking on or off.

    Args:
        thinks: whether the model is to think.
        variables: the names of the template's variables.
    """
    switches = {name: thinks for name in SWITCHES if name in variables}
    return switches if thinks or EFFORT not in variables else {**switches, EFFORT: "none"}
