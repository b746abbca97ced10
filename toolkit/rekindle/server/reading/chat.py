"""Bodies of chat completions."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.request.checks import preview
from rekindle.core.text.response import MessageForm
from rekindle.formats.rendering.efforts import EFFORT, SWITCHES
from rekindle.server.reading.call import NEUTRAL, Call, choice_count, repeat_prompts, sampling, streaming, token_reports
from rekindle.server.reading.fields import Fields
from rekindle.server.reading.tools.custom import INPUT, CustomTool
from rekindle.server.reading.tools.offer import read_tools, single_call

NEUTRAL_FIELDS: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "add_special_tokens": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
REASONING = ("reasoning_content", "reasoning")
"""Keys of a message's reasoning in bodies of clients."""
REASONING_KEYS: Mapping[bool | None, Sequence[str]] = {None: REASONING[:1], True: REASONING, False: ()}
"""Keys of the reasoning in an answer by `include_reasoning`. The first one suffices for all clients that were tried,
and with both, some would show the reasoning of a stream twice. A client of the other key sends true."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for a chat completion.

    Attributes:
        call: the call of the session.
        logprobs: whether the answer has the log-probabilities of its tokens.
        one_call: whether the answer has at most one tool call.
        echo: the text before the answer: that of a last message of the assistant, if the body asks for it.
        custom: the custom tools by name.
        reasoning_keys: the keys of the reasoning in the answer.
    """

    call: Call
    logprobs: bool
    one_call: bool
    echo: str
    custom: Mapping[str, CustomTool]
    reasoning_keys: Sequence[str] = REASONING_KEYS[None]


def read_chat(body: Fields, form: MessageForm) -> ChatRequest:
    """Return the chat completion requested by a body.

    Args:
        body: the fields of the body.
        form: the message format of the model's chat template.

    Raises:
        ApiError: a field is invalid, or is unknown and might change the answer.
    """
    messages = body.items("messages", dict)
    if messages is None:
        body.refuse_missing("messages")
    options, fields = sampling(body, "max_completion_tokens", "max_tokens")
    options.setdefault("max_tokens", None)
    if form.reasoning_key is not None and not {"json_schema", "regex", "choice"} & options.keys():
        _add_budget(body, options, fields)
    logprobs = body.flag("logprobs")
    top = body.take("top_logprobs", int)
    if top and not logprobs:
        body.refuse("top_logprobs", "requires logprobs=true")
    if logprobs:
        options["logprobs"], fields["logprobs"] = top or 0, "top_logprobs"
    one_call, reports = not body.flag("parallel_tool_calls", True), token_reports(body, options, fields)
    tools = read_tools(body, nested=True)
    options |= {**tools.options, **template_in(body), **single_call(one_call)}
    count = choice_count(body)
    prompts, n = repeat_prompts([[message(each, form) for each in messages]], options, count)
    fields["prompt"] = "messages"
    call = Call(prompts if len(prompts) > 1 else prompts[0], options, n, count, fields, streaming(body), reports)
    echo = _last_text(messages[-1]) if body.flag("echo") else ""
    keys = REASONING_KEYS[body.take("include_reasoning", bool)]
    body.finish(NEUTRAL_FIELDS)
    return ChatRequest(call, logprobs, one_call, echo, tools.custom, keys)


def _last_text(last: Mapping[str, Any]) -> str:
    """Return the text of a last message of the assistant; empty for another role."""
    content = last.get("content") if last.get("role") == "assistant" else None
    if isinstance(content, list):
        content = "\n".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return content if isinstance(content, str) else ""


def message(source: Mapping[str, Any], form: MessageForm) -> dict[str, Any]:
    """Convert a message from OpenAI's format to the format of the chat template."""
    result = {name: value for name, value in source.items() if value is not None or name == "content"}
    if result.get("role") == "developer":  # most chat templates only know the role's former name
        result["role"] = "system"
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


def _add_budget(body: Fields, options: dict[str, Any], fields: dict[str, str]) -> None:
    """Add the budget of thoughts in Anthropic's form, as a keyword of the session."""
    thinking = body.peek(("thinking",)).get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") == "enabled" and "budget_tokens" in thinking:
        options.setdefault("thinking_budget", thinking["budget_tokens"])
        fields.setdefault("thinking_budget", "thinking")


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
