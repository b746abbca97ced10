"""Answer formats of models, from the checkpoint's response template or the template of its family."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Final

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, InvalidRequest
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.rendering.chat import lists_tools, render
from rekindle.formats.response import MessageForm
from rekindle.formats.responses.calls import calls_of
from rekindle.formats.responses.families import CALL_FIELDS, answer_template, call_field_for, template_for
from rekindle.formats.responses.forms.objects import HERMES, TemplateData
from rekindle.formats.responses.marks import Marks, marks_of
from rekindle.formats.responses.parser import ResponseParser
from rekindle.formats.responses.region import FieldEnd
from rekindle.formats.responses.template import ResponseTemplate, load

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Keys for reasoning in messages, in both chat templates and response templates."""


IN_TEMPLATE = "in the chat template"
PROBE: Final[Mapping[str, Any]] = {"name": "look_up", "arguments": {"probe": "x"}}
"""The call for finding a chat template's form."""
_NOWHERE: Final = "\x00"


@dataclass(frozen=True, slots=True)
class Format:
    """Format of a model's answers, for parsing and for rendering them in a conversation.

    Attributes:
        template: parser of the answers, or None for plain text.
        source: the template as data.
        form: the format of assistant messages expected by the chat template.
        calls: the field of tool calls, as data; None for an unknown form.
        tells_tools: whether the chat template has no place for tools, so the system message has their schemas.
        is_plain: whether answers without calls are plain text.
    """

    template: ResponseTemplate | None
    source: Mapping[str, Any] | None
    form: MessageForm
    calls: TemplateData | None = None
    tells_tools: bool = False
    is_plain: bool = False

    @property
    def tools(self) -> str:
        """The handling of tools, in words."""
        if self.tells_tools:
            return "told in the system message, since the chat template has no place for them"
        reads_calls = self.template is not None and "tool_calls" in self.template.fields
        return IN_TEMPLATE if reads_calls else f"{IN_TEMPLATE}; calls are in an unknown form, so they stay content"


PLAIN = Format(None, None, MessageForm(), is_plain=True)
"""Format of a model without a chat template."""


def format_of(tokenizer: Tokenizer) -> Format:
    """Return the format of a model's answers.

    The checkpoint's response template has priority over the template of `families.template_for`. Without delimiters in
    the chat template, answers are plain text.
    """
    if tokenizer.template_with_tools is None:
        return PLAIN
    declared = None if tokenizer.response_template is None else json.dumps(tokenizer.response_template)
    return _format(
        tokenizer.template_with_tools, declared, tokenizer.bos_token, tokenizer.eos_token, marks_of(tokenizer)
    )


@lru_cache(maxsize=16)
def _format(
    chat_template: str, response_template: str | None, bos_token: str | None, eos_token: str | None, marks: Marks
) -> Format:
    source = None if response_template is None else json.loads(response_template)
    template: ResponseTemplate | None = None
    if source is not None:
        try:
            template = load(source, marks)
        except CheckpointError as error:
            warn(f"the checkpoint's own response template is not used: {error}")
    tells_tools, is_plain = not lists_tools(chat_template), False
    form, call = _form(chat_template, bos_token, eos_token)
    calls = _call_field(chat_template, call)
    if template is None:
        is_plain = tells_tools and template_for(chat_template, eos_token) is None
        source = answer_template(chat_template, eos_token, calls)
        template = None if source is None else load(source, marks)
    return Format(template, source, form, calls, tells_tools, is_plain)


def _call_field(chat_template: str, call: str | None) -> TemplateData | None:
    """Return the field of calls in answers to a chat template, or None for an unknown form.

    The delimiters in the template's source suggest a form. If the template renders a call, the form has to read it,
    because some families share a delimiter only. For a template with neither tools nor calls, the system message shows
    the form of Hermes.

    Args:
        chat_template: the chat template.
        call: the text of a call, as the template renders it; None if the template renders none.
    """
    suggested = call_field_for(chat_template)
    if call is None or PROBE["name"] not in call:
        return suggested or (None if lists_tools(chat_template) else HERMES)
    candidates = [*filter(None, [suggested]), *CALL_FIELDS.values()]
    return next((field for field in candidates if _reads(field, call)), None)


def _reads(field: TemplateData, text: str) -> bool:
    """Return True if a field reads the rendered call."""
    parser = ResponseParser(load({"start_anchor": _NOWHERE, "fields": {"tool_calls": field, "content": {}}}))
    events = [*parser.feed(text), *parser.finish()[1]]
    values = [event.value for event in events if isinstance(event, FieldEnd) and event.field == "tool_calls"]
    calls = [call for value in values for call in calls_of(value, "", "")]
    return [(call.name, call.arguments) for call in calls] == [(PROBE["name"], PROBE["arguments"])]


def _reasoning_key(chat_template: str) -> str | None:
    """Return the message key for reasoning in a chat template, or None."""
    for key in REASONING_KEYS:
        if re.search(rf"\.{key}\b|['\"]{key}['\"]", chat_template):
            return key
    return None


def _form(chat_template: str, bos_token: str | None, eos_token: str | None) -> tuple[MessageForm, str | None]:
    """Find the message format expected by a chat template, by rendering a tool call; return it and the call's text.

    A template that concatenates arguments with text fails for an object, or writes it in Python syntax. A template that
    checks for content may render an empty one as a turn, so None is preferred if it is accepted.
    """
    key = _reasoning_key(chat_template)
    if "tool_calls" not in chat_template:
        return MessageForm(key), None
    user = {"role": "user", "content": "x"}
    for as_text, null_content in product((False, True), (True, False)):
        function = {**PROBE, "arguments": json.dumps(PROBE["arguments"])} if as_text else PROBE
        call = {"type": "function", "id": "call00000", "function": function}
        content = None if null_content else ""
        messages = (user, {"role": "assistant", "content": content, "tool_calls": [call]})
        try:
            rendered = render(messages, chat_template, bos_token, eos_token, variables={"add_generation_prompt": False})
        except InvalidRequest:
            continue
        if "'probe'" not in rendered and '\\"probe' not in rendered and "None" not in rendered:
            prompt = render([user], chat_template, bos_token, eos_token)
            start = len(prompt) if rendered.startswith(prompt) else rendered.find(user["content"]) + 1
            return MessageForm(key, as_text, null_content), rendered[start:]
    return MessageForm(key), None
