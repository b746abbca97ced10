"""Bodies of responses, OpenAI's successor of chat completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.core.request.checks import preview
from rekindle.formats.response import MessageForm
from rekindle.server.common.call import Call, Streaming
from rekindle.server.common.fields import IGNORED, Fields
from rekindle.server.common.messages import messages_in
from rekindle.server.common.sampling import ANY_OBJECT, NEUTRAL, sampling
from rekindle.server.common.tools.offer import Tools, read_tools, single_call
from rekindle.server.openai.responses.items import Item, messages_of, read_items, tools_in, update

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
INCLUDES = (
    LOGPROBS,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Parts of a response on demand. Reasoning has its text in any case, and there are no items of the other types."""
HINTS = IGNORED | {
    "access_programs",
    "background_options",
    "client_metadata",
    "context_management",
    "image",
    "prompt_cache_options",
}
"""Fields without effect on the answer: about accounts, caches, and conversations that grow too long."""
NO_ITEMS: Mapping[str, Item] = {}


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
        tools: the tools.
    """

    call: Call
    one_call: bool
    echo: Mapping[str, Any]
    items: Sequence[Item]
    stored: bool
    logprobs: bool
    previous: str | None
    tools: Tools


def read_previous(body: Fields) -> str | None:
    """Return the id of the response before the input, without taking the field; None if absent."""
    previous = body.peek(["previous_response_id"]).get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        body.refuse("previous_response_id", f"must be a string, got {preview(previous)}")
    return previous


def read_response(
    body: Fields, form: MessageForm, earlier: Sequence[Item] = (), targets: Mapping[str, Item] = NO_ITEMS
) -> ResponseRequest:
    """Return the response requested by a body.

    Args:
        body: the fields of the body.
        form: the message format of the model's chat template.
        earlier: the items of the conversation before the input.
        targets: the items to which the input refers, by id.

    Raises:
        ApiError: a field is invalid, or is unknown and might change the answer.
    """
    if body.any("conversation") is not None:
        body.refuse("conversation", "is not served: name the last response with previous_response_id")
    previous = body.take("previous_response_id", str)
    items = read_items(body, targets)
    conversation = [*earlier, *items]
    update(body, conversation)
    echo = body.peek((*ECHO_FIELDS, "text", "top_p", "store"))
    messages = _with_instructions(body, messages_of(body, conversation))
    options, fields = sampling(body, "max_output_tokens")
    options.setdefault("max_tokens", None)
    tools = read_tools(body, nested=False, later=tools_in(conversation))
    options |= {**_format(body), **tools.options, **_reasoning(body)}
    one_call = not body.flag("parallel_tool_calls", True)
    options |= single_call(one_call)
    stream, stream_options = body.flag("stream"), body.take_fields("stream_options")
    if stream_options is not None:
        stream_options.finish({}, ("include_obfuscation", "reasoning_summary_delivery"))
    prompt = messages_in(messages, form, "input")
    fields |= {"prompt": "input", "json_schema": "text.format"}
    logprobs = _logprobs(body, options, fields)
    options = {**_truncation(body), **options}
    call = Call(prompt, options, None, 1, fields, Streaming() if stream else None)
    stored = body.flag("store", True)
    body.finish(NEUTRAL_FIELDS, HINTS)
    return ResponseRequest(call, one_call, echo, items, stored, logprobs, previous, tools)


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
            text_format.refuse("type", f"must be text, json_object or json_schema, got {preview(kind)}")
    text_format.finish({}, ("name", "description", "strict"))
    return options


def _truncation(body: Fields) -> dict[str, Any]:
    """Take the wish to cut a prompt too long for the model, as a keyword of the session; empty without it."""
    truncation = body.take("truncation", str)
    if truncation not in (None, "auto", "disabled"):
        body.refuse("truncation", f"must be auto or disabled, got {preview(truncation)}")
    return {"truncate_prompt_tokens": -1} if truncation == "auto" else {}


def _reasoning(body: Fields) -> dict[str, Any]:
    """Take the variables of the chat template, with the effort among them, as a keyword of the session."""
    variables, reasoning = dict(body.take("chat_template_kwargs", dict) or {}), body.take_fields("reasoning")
    if reasoning is not None:
        effort = reasoning.take("effort", str)
        if effort is not None:
            variables["reasoning_effort"] = effort
        reasoning.finish({}, ("context", "generate_summary", "mode", "summary"))
    return {"chat_template_kwargs": variables or None}
