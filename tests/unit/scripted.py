"""Sessions with scripted models: the fake device, and a tokenizer of characters and marks."""

import json
import string
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from rekindle.core.text.tokenizer import Tokenizer
from rekindle.session.session import Session
from rekindle.testing import fake_limits, fake_loaded_engine, fake_session
from rekindle.testing.model import FAKE_MODEL

END = "<|im_end|>"
OTHERS = "你好こん"
"""Characters beyond ASCII for scripts."""
HERMES = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template with reasoning and tool calls; it renders an answer as a model of the tests writes it."""
ANSWER = "<|im_start|>assistant\n"
"""The text before an answer."""
FORGETFUL = HERMES.replace("{% if m.reasoning_content %}", "{% if m.reasoning_content and loop.last %}")
"""The same without the reasoning of earlier turns."""

Script = Callable[[str], str]
"""Returns the answer to a conversation as the model reads it."""
Serve = Callable[..., Session]
"""Opens a session for an answer or a script, and perhaps a chat template."""


def call(name: str = "weather", **arguments: Any) -> str:
    """Return a tool call as the model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def dictated(prompt: str) -> str:
    """Return the model's answer: the text dictated by the user, or a sentence with the result of a tool."""
    turns = prompt.split("<|im_start|>")
    role, _, content = turns[-2].removesuffix("<|im_end|>\n").partition("\n")
    return f"It is: {content}" if role == "tool" else content.removeprefix("say ")


def tokenizer(template: str = HERMES, *, every_byte: bool = False) -> Tokenizer:
    """Make a tokenizer of ASCII's printable characters, parts of `OTHERS`, pairs, and the marks of turns.

    Args:
        every_byte: use all bytes as tokens, more than the fake device knows.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    characters = [each for each in letters if every_byte or each in string.printable]
    characters += [] if every_byte else ["Ġ", "Ċ"]
    pairs = ["th", "he", "an"]
    (others, _), *_ = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(OTHERS)
    more = [] if every_byte else sorted({*others} - {*characters})
    vocabulary = {token: place for place, token in enumerate([*characters, *pairs, *more])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("t", "h"), ("h", "e"), ("a", "n")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", END)])
    return Tokenizer(backend, chat_template=template, eos_token=END)


@contextmanager
def scripted_session(
    patch: pytest.MonkeyPatch,
    script: Script,
    template: str = HERMES,
    by_letters: bool = False,
    max_context: int = 1024,
) -> Iterator[Session]:
    """Yield a session with a model that answers by a script, called once for each conversation, and ends its turn.

    Like a real device, the model chooses among the tokens of a constraint. It adds the parts of the form missing in the
    script, such as line breaks around calls.

    Args:
        by_letters: the model writes its answers letter by letter, unlike its tokenizer.
        max_context: the longest conversation, in tokens.
    """
    text = tokenizer(template)
    (end,), mark = text.encode_chat(END), text.encode_chat(ANSWER)

    @cache
    def answer_to(conversation: tuple[int, ...]) -> list[int]:
        answer = script(text.decode(conversation, skip_special_tokens=False))
        parts = answer if by_letters else [answer]
        return [*(token for part in parts for token in text.encode_chat(part)), end]

    def next_token(tokens: Sequence[int], draw: int = 0, banned: Collection[int] = ()) -> int:
        begins = next(at for at in range(len(tokens), 0, -1) if [*tokens[max(0, at - len(mark)) : at]] == mark)
        answer, prefix = answer_to(tuple(tokens[:begins])), list(tokens[begins:])
        follows = prefix == answer[: len(prefix)]
        token = answer[min(len(prefix), len(answer) - 1)] if follows else _next_of(answer, prefix, text.backend)
        return token if token not in banned else min(set(range(text.vocab_size)) - set(banned), default=token)

    patch.setattr("rekindle.testing.device.next_token", next_token)
    patch.setattr("rekindle.client.submission.token_hex", lambda: "")  # equal answers have calls of equal ids
    model = replace(FAKE_MODEL, max_context=max(FAKE_MODEL.max_context, max_context))
    limits = fake_limits(model, page_size=16, num_pages=max(512, max_context // 8), max_context=max_context)
    with fake_session(fake_loaded_engine(limits, tokenizer=text, eos_ids=(end,))) as session:
        yield session


def _next_of(answer: Sequence[int], prefix: Sequence[int], backend: Backend) -> int:
    """Return the next token of an answer after a prefix in other tokens, with additions between its own."""
    texts = {token: text for text, token in backend.get_vocab().items()}
    rest = "".join(texts[token] for token in answer)
    for token in prefix:
        rest = rest.removeprefix(texts[token])
    fitting = (token for token, text in texts.items() if rest.startswith(text))
    return max(fitting, key=lambda token: len(texts[token])) if rest else answer[-1]
