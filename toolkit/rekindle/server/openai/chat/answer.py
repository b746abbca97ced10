"""Chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.formats.response import ToolCall
from rekindle.results.generation import Generation
from rekindle.server.common.answer import Answer, call_text
from rekindle.server.common.call import TokenReports
from rekindle.server.common.captures import activations_object
from rekindle.server.common.events import Head
from rekindle.server.common.logprobs import chat_logprobs, prompt_scores
from rekindle.server.common.tools.custom import CustomTool
from rekindle.server.openai.chat.body import ChatRequest
from rekindle.server.openai.events import finish_reason, stop_reason, usage


def chat_completion(head: Head, generations: Sequence[Generation], request: ChatRequest) -> dict[str, Any]:
    """Return a chat completion with a choice for each generation."""
    choices = [_choice(index, each, request) for index, each in enumerate(generations)]
    reports = _prompt_reports(generations[0], request.call.reports)
    totals = usage(generations, request.call.choices)
    return {**head.of("chat.completion"), "choices": choices, "usage": totals, **reports}


def _prompt_reports(generation: Generation, reports: TokenReports) -> dict[str, Any]:
    """Return the fields of vLLM about the prompt of a chat; null if not requested, as there."""
    return {
        "prompt_logprobs": prompt_scores(generation.prompt_logprobs or ()) if reports.prompt else None,
        "prompt_token_ids": list(generation.prompt_token_ids) if reports.ids else None,
    }


def _choice(index: int, generation: Generation, request: ChatRequest) -> dict[str, Any]:
    answer = Answer.of(generation, request.call, one_call=request.one_call, custom=request.custom)
    calls, content = answer.calls, request.echo + answer.content
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if answer.reasoning is not None:
        message |= dict.fromkeys(request.reasoning_keys, answer.reasoning)
    if calls:
        message["tool_calls"] = [tool_call_object(call, request.custom) for call in calls]
    reports, logprobs = request.call.reports, None
    if request.logprobs:
        logprobs = chat_logprobs(generation.logprobs or (), by_id=reports.by_id)
    activations = activations_object(generation)
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(generation, has_calls=bool(calls)),
        "stop_reason": stop_reason(generation, request.call),
        "token_ids": list(generation.token_ids) if reports.ids else None,
        **({} if activations is None else {"activations": activations}),
    }


def tool_call_object(call: ToolCall, custom: Mapping[str, CustomTool]) -> dict[str, Any]:
    """Return a tool call with its arguments as JSON text, or with the input of a custom tool."""
    return call_object(call.id, call.name, call_text(call, custom), is_custom=call.name in custom)


def call_object(call_id: str, name: str, text: str, *, is_custom: bool) -> dict[str, Any]:
    kind, value = ("custom", "input") if is_custom else ("function", "arguments")
    return {"id": call_id, "type": kind, kind: {"name": name, value: text}}
