"""The body of a chat completion."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.core.request.checks import preview
from rekindle.core.text.response import MessageForm
from rekindle.server.reading.call import NEUTRAL, Call, draws, repeated, sampling, streaming
from rekindle.server.reading.fields import Fields

ALIKE: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "add_special_tokens": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
REASONING = ("reasoning_content", "reasoning")
"""The keys that clients give a message's reasoning under."""


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A chat completion that is asked for.

    Attributes:
        call: of the session.
        logprobs: whether each token's log-probability is given.
        one_call: whether at most one tool call is given.
        by_id: whether log-probabilities name tokens by their ids.
    """

    call: Call
    logprobs: bool
    one_call: bool
    by_id: bool


def chat_call(body: Fields, form: MessageForm) -> ChatCall:
    """Return the call that a body asks for.

    Args:
        form: how the model's chat template reads messages.

    Raises:
        Refused: a field cannot be read, or might change the answer and is not known.
    """
    given = body.items("messages", dict)
    if given is None:
        body.needed("messages")
    ask, fields = sampling(body, "max_completion_tokens", "max_tokens")
    ask.setdefault("max_tokens", None)
    logprobs = body.flag("logprobs")
    top = body.take("top_logprobs", int)
    if top is not None and not logprobs:
        body.refuse("top_logprobs", "needs logprobs=true beside it")
    if logprobs:
        ask["logprobs"], fields["logprobs"] = top or 0, "top_logprobs"
    one_call, by_id = not body.flag("parallel_tool_calls", True), body.flag("return_tokens_as_token_ids")
    ask |= tools_in(body) | template_in(body)
    count = draws(body)
    asked, n = repeated([[message(each, form) for each in given]], ask, count)
    fields["prompt"] = "messages"
    call = Call(asked if len(asked) > 1 else asked[0], ask, n, count, fields, streaming(body))
    body.finish(ALIKE)
    return ChatCall(call, logprobs, one_call, by_id)


def message(given: Mapping[str, Any], form: MessageForm) -> dict[str, Any]:
    """Return a message as the chat template reads it, which may be another form than that of OpenAI's API."""
    kept = {name: value for name, value in given.items() if value is not None or name == "content"}
    if kept.get("role") == "developer":  # which most chat templates know by its former name
        kept["role"] = "system"
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [_called(each, form) for each in calls]
        if not calls:
            del kept["tool_calls"]
        else:
            kept.setdefault("content", None)
    said = next((kept.pop(name) for name in REASONING if name in kept), None)
    if said is not None and form.reasoning_key is not None:
        kept[form.reasoning_key] = said
    return kept


def _called(given: Any, form: MessageForm) -> Any:
    """Return a tool call, the arguments of which are JSON in a text, with arguments as the chat template reads them."""
    function = given.get("function") if isinstance(given, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if form.arguments_as_text or not isinstance(function, dict) or not isinstance(arguments, str):
        return given
    try:
        read = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        return given
    return {**given, "function": {**function, "arguments": read}}


def listed_tools(body: Fields) -> tuple[list[Any], Any]:
    """Take the tools, of which there may be none, and what is said of which is to be called.

    Raises:
        Refused: one is to be called, and there are none.
    """
    tools, choice = body.take("tools", list) or [], body.any("tool_choice")
    if not tools and choice not in (None, "auto", "none"):
        body.refuse("tool_choice", "needs tools beside it")
    return tools, choice


def tools_in(body: Fields) -> dict[str, Any]:
    tools, choice = listed_tools(body)
    if not tools:
        return {}
    for each in tools:
        if not isinstance(each, dict) or each.get("type", "function") != "function" or "function" not in each:
            body.refuse("tools", f"must each be {{'type': 'function', 'function': ...}}, got {preview(each)}")
    match choice:
        case None | "auto" | "none" | "required":
            named = choice or "auto"
        case {"type": "function", "function": {"name": str(named)}}:
            pass
        case _:
            why = "must be auto, none, required or {'type': 'function', 'function': {'name': ...}}"
            body.refuse("tool_choice", f"{why}, got {preview(choice)}")
    return {"tools": tools, "tool_choice": named}


def template_in(body: Fields) -> dict[str, Any]:
    """Return what a body says to the chat template."""
    variables = dict(body.take("chat_template_kwargs", dict) or {})
    for name in ("reasoning_effort", "add_generation_prompt"):
        value = body.any(name)
        if value is not None:
            variables[name] = value
    stays_open = body.flag("continue_final_message")
    if stays_open and variables.get("add_generation_prompt") is False:
        del variables["add_generation_prompt"]  # which vLLM wants to be said too
    return {"chat_template_kwargs": variables or None, "continue_final_message": stays_open}
