"""How the answers of one model are read: by the response template of its checkpoint, or by that of its family."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, InvalidRequest
from rekindle.core.text.chat import render
from rekindle.core.text.response import MessageForm
from rekindle.core.text.responses.families import written_for
from rekindle.core.text.responses.marks import Marks, marks_of
from rekindle.core.text.responses.template import ResponseTemplate, load
from rekindle.core.text.tokenizer import Tokenizer

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""The keys that reasoning has in messages, in chat templates and response templates alike."""


@dataclass(frozen=True, slots=True)
class Format:
    """The way in which the answers of a model are read, and written into a conversation again.

    Attributes:
        template: what reads them; None if they are plain text.
        written: the same as data.
        form: how its chat template wants them.
    """

    template: ResponseTemplate | None
    written: Mapping[str, Any] | None
    form: MessageForm


PLAIN = Format(None, None, MessageForm())
"""The format of a model without a chat template."""


def format_of(tokenizer: Tokenizer) -> Format:
    """Return the format of a model's answers.

    A response template of the checkpoint's own comes first, then what `families.written_for` makes of the marks in the
    chat template. A model whose chat template has no such marks answers in plain text.
    """
    if tokenizer.answer_template is None:
        return PLAIN
    own = None if tokenizer.response_template is None else json.dumps(tokenizer.response_template)
    return _format(tokenizer.answer_template, own, tokenizer.bos_token, tokenizer.eos_token, marks_of(tokenizer))


@lru_cache(maxsize=16)
def _format(chat_template: str, own: str | None, bos_token: str | None, eos_token: str | None, marks: Marks) -> Format:
    written = None if own is None else json.loads(own)
    template: ResponseTemplate | None = None
    if written is not None:
        try:
            template = load(written, marks)
        except CheckpointError as error:
            warn(f"the checkpoint's own response template is not used: {error}")
    if template is None:
        written = written_for(chat_template, eos_token)
        template = None if written is None else load(written, marks)
    return Format(template, written, _form(chat_template, bos_token, eos_token))


def _reasoning_key(chat_template: str) -> str | None:
    """Return the key under which a chat template looks for a message's reasoning."""
    for key in REASONING_KEYS:
        if re.search(rf"\.{key}\b|['\"]{key}['\"]", chat_template):
            return key
    return None


def _form(chat_template: str, bos_token: str | None, eos_token: str | None) -> MessageForm:
    """Return how a chat template wants messages, which is seen in what it makes of a call.

    Those that join the arguments to other text fail at an object, or write it as Python does. Those that look whether
    there is a content may write an empty one as a turn of its own, so None is better where it is taken.
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
            made = render(messages, chat_template, bos_token, eos_token, variables={"add_generation_prompt": False})
        except InvalidRequest:
            continue
        if "'probe'" not in made and '\\"probe' not in made and "None" not in made:
            return MessageForm(key, as_text, null_content)
    return MessageForm(key)
