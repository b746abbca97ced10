"""Bodies of chat completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.formats.response import MessageForm
from rekindle.server.common.call import Call
from rekindle.server.common.fields import Fields
from rekindle.server.common.messages import REASONING, messages_in, template_in
from rekindle.server.common.sampling import NEUTRAL, choice_count, repeat_prompts, sampling, streaming, token_reports
from rekindle.server.common.tools.custom import CustomTool
from rekindle.server.common.tools.offer import read_tools, single_call

NEUTRAL_FIELDS: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "add_special_tokens": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "verbosity": ("medium",),
}
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
    prompts, n = repeat_prompts([messages_in(messages, form)], options, count)
    fields["prompt"] = "messages"
    call = Call(prompts if len(prompts) > 1 else prompts[0], options, n, count, fields, streaming(body), reports)
    echo = _last_text(messages[-1]) if body.flag("echo") else ""
    keys = REASONING_KEYS[body.take("include_reasoning", bool)]
    body.finish(NEUTRAL_FIELDS)
    return ChatRequest(call, logprobs, one_call, echo, tools.custom, keys)


def _add_budget(body: Fields, options: dict[str, Any], fields: dict[str, str]) -> None:
    """Add the budget of thoughts in Anthropic's form, as a keyword of the session."""
    thinking = body.peek(("thinking",)).get("thinking")
    if isinstance(thinking, Mapping) and thinking.get("type") == "enabled" and "budget_tokens" in thinking:
        options.setdefault("thinking_budget", thinking["budget_tokens"])
        fields.setdefault("thinking_budget", "thinking")


def _last_text(last: Mapping[str, Any]) -> str:
    """Return the text of a last message of the assistant; empty for another role."""
    content = last.get("content") if last.get("role") == "assistant" else None
    if isinstance(content, list):
        content = "\n".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return content if isinstance(content, str) else ""
