"""Answer formats of models, from the checkpoint's response template or the template of its family."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, InvalidRequest
from rekindle.core.text.chat import lists_tools, render
from rekindle.core.text.response import MessageForm
from rekindle.core.text.responses.families import HERMES, TemplateData, call_field_for, template_for
from rekindle.core.text.responses.marks import Marks, marks_of
from rekindle.core.text.responses.template import ResponseTemplate, load
from rekindle.core.text.tokenizer import Tokenizer

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Keys for reasoning in messages, in both chat templates and response templates."""


IN_TEMPLATE = "in the chat template"


@dataclass(frozen=True, slots=True)
class Format:
    """Format of a model's answers, for parsing and for rendering them in a conversation.

    Attributes:
        template: parser of the answers, or None for plain text.
        source: the template as data.
        form: the format of assistant messages expected by the chat template.
        tells_tools: whether the chat template has no place for tools, so the system message has their schemas.
        is_plain: whether answers without calls are plain text.
    """

    template: ResponseTemplate | None
    source: Mapping[str, Any] | None
    form: MessageForm
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
    if template is None:
        calls = call_field_of(chat_template)
        is_plain = template_for(chat_template, eos_token) is None
        source = template_for(chat_template, eos_token, calls)
        template = None if source is None else load(source, marks)
    return Format(template, source, _form(chat_template, bos_token, eos_token), tells_tools, is_plain)


def call_field_of(chat_template: str) -> TemplateData | None:
    """Return the field of calls in answers to a chat template, or None for an unknown form.

    For a template with neither tools nor calls, the system message shows the form of Hermes.
    """
    return call_field_for(chat_template) or (None if lists_tools(chat_template) else HERMES)


def _reasoning_key(chat_template: str) -> str | None:
    """Return the message key for reasoning in a chat template, or None."""
    for key in REASONING_KEYS:
        if re.search(rf"\.{key}\b|['\"]{key}['\"]", chat_template):
            return key
    return None


def _form(chat_template: str, bos_token: str | None, eos_token: str | None) -> MessageForm:
    """Find the message format expected by a chat template, by rendering a tool call.

    A template that concatenates arguments with text fails for an object, or writes it in Python syntax. A template that
    checks for content may render an empty one as a turn, so None is preferred if it is accepted.
    """
    key = _reasoning_key(chat_template)
    if "tool_calls" not in chat_template:
        return MessageForm(key)
    for as_text, null_content in product((False, True), (True, False)):
        function = {"name": "f", "arguments": '{"probe": "x"}' if as_text else {"probe": "x"}}
        call = {"type": "function", "id": "call00000", "function": function}
        content = None if null_content else ""
        messages = ({"role": "user", "content": "x"}, {"role": "assistant", "content": content, "tool_calls": [call]})
        try:
            rendered = render(messages, chat_template, bos_token, eos_token, variables={"add_generation_prompt": False})
        except InvalidRequest:
            continue
        if "'probe'" not in rendered and '\\"probe' not in rendered and "None" not in rendered:
            return MessageForm(key, as_text, null_content)
    return MessageForm(key)
