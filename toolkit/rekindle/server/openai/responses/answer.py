"""Responses."""

from collections.abc import Sequence
from typing import Any

from rekindle.core.request.tokens import TokenLogprob
from rekindle.formats.response import CallPiece
from rekindle.results.generation import Generation
from rekindle.server.common.answer import Answer, call_text
from rekindle.server.common.events import Head
from rekindle.server.common.logprobs import chat_logprobs, tokens_of
from rekindle.server.common.tools.offer import Tools
from rekindle.server.openai.responses.body import ResponseRequest

Item = dict[str, Any]


def response(head: Head, generation: Generation, request: ResponseRequest) -> dict[str, Any]:
    """Return the response for a generation."""
    items: list[Item] = []
    answer = Answer.of(generation, request.call, one_call=request.one_call, custom=request.tools.custom)
    if answer.reasoning is not None:
        items.append(reasoning_item(head, len(items), answer.reasoning))
    if answer.content or not (items or answer.calls):
        tokens, _ = tokens_of(answer.content, (generation.logprobs or ()) if request.logprobs else ())
        items.append(message_item(head, len(items), answer.content, output_logprobs(tokens)))
    for call in answer.calls:
        piece = CallPiece(call.id, call.name, call_text(call, request.tools.custom))
        items.append(call_item(head, len(items), piece, request.tools))
    return final_response(head, items, generation, request)


def final_response(
    head: Head, items: Sequence[Item], generation: Generation, request: ResponseRequest
) -> dict[str, Any]:
    """Return the response of a finished generation, with these items as its output."""
    cut = generation.finish_reason == "length"
    counts = generation.usage
    usage = {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": generation.cached_tokens,
            "cache_write_tokens": 0,
            **({"image_tokens": counts.image_tokens} if counts.image_tokens else {}),
        },
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
        "total_tokens": counts.total_tokens,
    }
    return {
        **initial_response(head, request),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": list(items),
        "usage": usage,
    }


def initial_response(head: Head, request: ResponseRequest) -> dict[str, Any]:
    defaults = {"tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}}
    absent = dict.fromkeys(("access_programs", "instructions", "temperature", "top_p"))
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "model": head.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "previous_response_id": request.previous,
        "usage": None,
        **defaults,
        **absent,
        **request.echo,
        "tools": [_tool(each) for each in request.echo.get("tools", ())],
    }


def _tool(tool: Any) -> Any:
    """Return a tool of the request with all fields of a response."""
    match tool:
        case {"type": "function"}:
            return {"parameters": None, "strict": None, **tool}
        case {"type": "namespace", "tools": list(tools)}:
            return {"description": "", **tool, "tools": [_tool(each) for each in tools]}
    return tool


def output_logprobs(tokens: Sequence[TokenLogprob]) -> list[Item]:
    """Return the log-probabilities of tokens in the form of an output text."""
    entries: list[Item] = chat_logprobs(tokens)["content"]
    return entries


def _id(kind: str, head: Head, place: int) -> str:
    return f"{kind}_{head.id.rpartition('-')[2]}_{place}"


def message_item(head: Head, place: int, text: str, logprobs: Sequence[Item] = ()) -> Item:
    item: Item = {"id": _id("msg", head, place), "type": "message", "role": "assistant", "status": "completed"}
    return {**item, "content": [_text_part(text, logprobs)]}


def _text_part(text: str, logprobs: Sequence[Item]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def reasoning_item(head: Head, place: int, text: str) -> Item:
    item: Item = {"id": _id("rs", head, place), "type": "reasoning", "summary": [], "status": "completed"}
    return {**item, "content": [{"type": "reasoning_text", "text": text}]}


def call_item(head: Head, place: int, piece: CallPiece, tools: Tools) -> Item:
    """Return the item of a call with the arguments of a piece."""
    is_custom = piece.name in tools.custom
    namespace, name = tools.namespaced.get(piece.name, (None, piece.name))
    prefix, kind = ("ctc", "custom_tool_call") if is_custom else ("fc", "function_call")
    item: Item = {"id": _id(prefix, head, place), "type": kind, "status": "completed", "call_id": piece.id}
    item |= {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return {**item, "input" if is_custom else "arguments": piece.arguments}
