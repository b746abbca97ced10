"""Bodies of messages in Anthropic's API."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from rekindle.core.request.checks import preview
from rekindle.formats.rendering.efforts import EFFORT
from rekindle.server.anthropic.blocks import Messages
from rekindle.server.common.call import Call, Streaming
from rekindle.server.common.errors import ApiError
from rekindle.server.common.fields import Fields, name_list
from rekindle.server.common.messages import ModelTemplate, messages_in, thinking_variables
from rekindle.server.common.sampling import sampling
from rekindle.server.common.tools.offer import single_call

HINTS: Final = frozenset(
    {
        "anthropic_beta",
        "anthropic_version",
        "betas",
        "billing_policy",
        "cache_control",
        "context_management",
        "diagnostics",
        "fallbacks",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Fields without effect on the answer. The prefix cache needs no marks."""
HOSTED: Final = ("code_execution_", "mcp_toolset", "tool_search_tool_", "web_fetch_", "web_search_")
"""Starts of the types of tools that Anthropic's servers run."""
NEUTRAL_FIELDS: Final[Mapping[str, tuple[Any, ...]]] = {"mcp_servers": ([],)}
NO_THREADS: Final = "thread_unsupported_request"
"""The error code after which Anthropic's client goes on without a conversation held by the server."""


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A request for a message.

    Attributes:
        call: the call of the session.
        one_call: whether the answer has at most one tool call.
        shows_thinking: whether blocks of thinking have their text.
    """

    call: Call
    one_call: bool
    shows_thinking: bool


def read_messages(body: Fields, template: ModelTemplate) -> MessagesRequest:
    """Return the message requested by a body.

    Args:
        body: the fields of the body.
        template: the model's chat template.

    Raises:
        ApiError: a field is invalid, or is unknown and might change the answer.
    """
    if not body.peek(("max_tokens",)):
        body.refuse_missing("max_tokens")
    if body.any("thread") is not None:
        message = "thread asks for a conversation held by the server, and this server holds none: send all messages"
        raise ApiError(HTTPStatus.BAD_REQUEST, message, param="thread", code=NO_THREADS)
    form = "output_format" if body.peek(("output_format",)) else "output_config.format"
    chat = _conversation(body, template)
    options, fields = sampling(body, "max_tokens")
    if stops := body.take("stop_sequences", list):
        if "stop" in options:
            body.refuse("stop_sequences", "and stop mean the same; give one of them")
        options["stop"], fields["stop"] = stops, "stop_sequences"
    if chat.schema is not None:
        options["json_schema"], fields["json_schema"] = chat.schema, form
    stream = Streaming() if body.flag("stream") else None
    fields["prompt"] = "messages"
    body.finish(NEUTRAL_FIELDS, HINTS)
    call = Call(chat.messages, {**options, **chat.options, **chat.choice}, None, 1, fields, stream)
    return MessagesRequest(call, chat.one_call, chat.shows_thinking)


def read_count(body: Fields, template: ModelTemplate) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the conversation of a body, and the keywords of the session for the number of its tokens.

    Raises:
        ApiError: a field is invalid, or is unknown and might change the number.
    """
    chat = _conversation(body, template)
    body.finish(NEUTRAL_FIELDS, HINTS)
    options = dict(chat.options)
    if chat.choice.get("tool_choice") == "none":
        del options["tools"]  # as in the prompt of a message
    return chat.messages, options


@dataclass(frozen=True, slots=True)
class _Conversation:
    """The conversation of a body.

    Attributes:
        messages: the messages for the chat template.
        options: the keywords of the session for the prompt.
        choice: the keywords of the session for the tool choice and the budget of thinking; empty without either.
        schema: the JSON schema of the answer, or None.
        one_call: whether the answer has at most one tool call.
        shows_thinking: whether blocks of thinking have their text.
    """

    messages: list[dict[str, Any]]
    options: Mapping[str, Any]
    choice: Mapping[str, Any]
    schema: dict[str, Any] | None
    one_call: bool
    shows_thinking: bool


def _conversation(body: Fields, template: ModelTemplate) -> _Conversation:
    """Take the conversation, and all fields with an effect on its prompt."""
    messages = _messages(body, template)
    stays_open = messages[-1]["role"] == "assistant"
    if stays_open and (messages[-1].get("tool_calls") or not messages[-1]["content"]):
        body.refuse("messages", "must end with a message of the user, with results of tools, or with text to continue")
    switches, budget, shows_thinking = _thinking(body, template.variables)
    effort, schema = _output(body, template.variables)
    tools, choice, one_call = _tools(body)
    variables = {**(body.take("chat_template_kwargs", dict) or {}), **effort, **switches}
    options = {"chat_template_kwargs": variables or None, "continue_final_message": stays_open}
    if tools:
        options["tools"] = tools
    calls: dict[str, Any] = {"tool_choice": choice, **single_call(one_call)} if tools else {}
    if budget is not None and template.form.reasoning_key is not None and schema is None:
        calls["thinking_budget"] = budget
    return _Conversation(messages, options, calls, schema, one_call, shows_thinking)


def _messages(body: Fields, template: ModelTemplate) -> list[dict[str, Any]]:
    """Take the instructions and the messages, at least one, for the chat template."""
    writer, system, sources = Messages(), body.any("system"), body.items("messages", dict)
    if sources is None:
        body.refuse_missing("messages")
    if system is not None:
        writer.system(system)
    for place, each in enumerate(sources):
        writer.add(each, f"messages[{place}]")
    if writer.hosted:
        body.note(f"blocks of the types {name_list(writer.hosted)} are left out: this server runs no tools")
    if not (messages := messages_in(writer.finish(), template.form)):
        body.refuse("messages", "have no text")
    return messages


def _thinking(body: Fields, variables: Collection[str]) -> tuple[dict[str, Any], int | None, bool]:
    """Take the wish for thinking. A template without a variable for it decides by itself.

    Returns:
        The variables of the template; the budget of tokens, or None; whether blocks of thinking have their text.
    """
    thinking = body.take_fields("thinking")
    if thinking is None:
        return {}, None, True
    kind, display = thinking.take("type", str), thinking.take("display", str)
    budget = thinking.take("budget_tokens", int)
    thinking.finish({}, ("block_binding",))
    if kind not in ("enabled", "adaptive", "between_tools", "disabled"):
        thinking.refuse("type", f"must be enabled, adaptive, between_tools or disabled, got {preview(kind)}")
    if budget is not None and budget < 0:
        thinking.refuse("budget_tokens", f"must be 0 or more, got {budget}")
    switches = {} if kind == "between_tools" else thinking_variables(kind != "disabled", variables)
    return switches, budget if kind == "enabled" else None, display != "omitted"


def _output(body: Fields, variables: Collection[str]) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Take the effort, as a variable of the template if it has one; and the schema of the answer, or None."""
    config, form = body.take_fields("output_config"), body.take_fields("output_format")
    effort = None
    if config is not None:
        effort, second = config.take("effort", str), config.take_fields("format")
        config.finish({})
        if form is not None and second is not None:
            body.refuse("output_format", "and output_config.format mean the same; give one of them")
        form = form or second
    return {EFFORT: effort} if effort and EFFORT in variables else {}, _schema(form)


def _schema(form: Fields | None) -> dict[str, Any] | None:
    """Return the JSON schema of an output format; None without one."""
    if form is None:
        return None
    kind = form.take("type", str)
    if kind != "json_schema":
        form.refuse("type", f"must be json_schema, got {preview(kind)}")
    schema = form.require("schema", dict)
    form.finish({}, ("name",))
    return schema


def _tools(body: Fields) -> tuple[list[dict[str, Any]], str, bool]:
    """Take the tools, the tool choice as in the session, and whether an answer has at most one call."""
    choice, one_call = _choice(body)
    entries = body.take("tools", list) or []
    hosted = [] if body.strict else [each for each in entries if _is_hosted(each)]
    if hosted:
        if choice in [each.get("name") for each in hosted]:
            body.refuse("tool_choice", f"names {preview(choice)}, which Anthropic's servers run: name another tool")
        kinds = name_list([each["type"] for each in hosted])
        body.note(f"tools of the types {kinds} are left out: this server runs no tools")
    tools = [each for each in entries if body.strict or not _is_hosted(each)]
    if not tools and choice not in ("auto", "none"):
        body.refuse("tool_choice", "requires tools")
    return [_tool(body, place, each) for place, each in enumerate(tools)], choice, one_call


def _choice(body: Fields) -> tuple[str, bool]:
    """Take the tool choice: as in the session, and whether an answer has at most one call."""
    choice = body.take_fields("tool_choice")
    if choice is None:
        return "auto", False
    kind, name = choice.take("type", str), choice.take("name", str)
    one_call = choice.flag("disable_parallel_tool_use")
    choice.finish({})
    if kind == "tool" and name is not None:
        return name, one_call
    if kind not in ("auto", "any", "none"):
        choice.refuse("type", f"must be auto, any, none, or tool with a name; got {preview(kind)}")
    return "required" if kind == "any" else kind, one_call


def _is_hosted(tool: Any) -> bool:
    """Return True for a tool that Anthropic's servers run."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind.startswith(HOSTED)


def _tool(body: Fields, place: int, tool: Any) -> dict[str, Any]:
    """Return a tool in the form of chat templates."""
    field = f"tools[{place}]"
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom"):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        body.refuse(field, f"must have a name and an input_schema; tools of type {preview(kind)} are not served")
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not isinstance(schema, dict):
        body.refuse(field, f"must have a name and an input_schema, got {preview(tool)}")
    description = tool.get("description")
    function = {"name": name} | ({} if description is None else {"description": description})
    return {"type": "function", "function": {**function, "parameters": schema}}
