"""Limits of thoughts in the formats of answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.request import Request
from rekindle.core.request.thoughts import MARK, ThoughtLimit
from rekindle.core.text.token_bytes import token_bytes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.responses.delimiters import Delimiter, Literals
from rekindle.formats.responses.families import reasoning_delimiters
from rekindle.formats.responses.formats import REASONING_KEYS, Format, format_of
from rekindle.formats.responses.marks import SIGN, Marks, marks_of, remove_signs
from rekindle.formats.responses.parser import ResponseParser
from rekindle.formats.responses.reading.reader import prompt_tail
from rekindle.formats.responses.template import ResponseTemplate

CHANNELS: Final = "<|channel|>analysis<|message|>"
FINAL: Final = "<|channel|>final<|message|>"


@dataclass(frozen=True, slots=True)
class _Delimiters:
    """The delimiters of thoughts.

    Attributes:
        opening, closing: the texts around a thought.
        next_message: the text after `closing` before any message.
        answer: the text after `next_message` before the answer.
    """

    opening: str
    closing: str
    next_message: str = ""
    answer: str = ""


def thought_limit(
    tokenizer: Tokenizer, budget: int, prompt: Sequence[int], tools: bool, vocab_size: int
) -> ThoughtLimit:
    """Return the limit of the thoughts in the answer to a prompt.

    Args:
        tokenizer: the model's tokenizer.
        budget: the most tokens of thoughts.
        prompt: the token ids of the prompt, perhaps with the beginning of a thought.
        tools: whether the answer may call tools.
        vocab_size: upper bound of the token ids.

    Raises:
        InvalidRequest: the chat template has no thoughts.
    """
    limit, template = _limit_of(tokenizer, tools, vocab_size), format_of(tokenizer).template
    if limit is None or template is None:
        raise InvalidRequest.of(
            "thinking_budget",
            f"thinking_budget={budget} needs a model with thoughts, and this model's chat template has no delimiters "
            "of thoughts; leave it out",
        )
    tail = prompt_tail(prompt, tokenizer, template)
    open_text = _open_thought(template, tail) if tail else _open_text(limit, prompt)
    used = 0 if open_text is None or not open_text.strip() else len(tokenizer.encode_chat(open_text))
    return replace(limit, budget=budget, is_open=open_text is not None, used=used)


@lru_cache(maxsize=8)
def _limit_of(tokenizer: Tokenizer, tools: bool, vocab_size: int) -> ThoughtLimit | None:
    """Return a limit in a model's format, with a budget of 0; None for a model without thoughts."""
    delimiters = _delimiters_of(tokenizer, format_of(tokenizer))
    if delimiters is None:
        return None
    marks = marks_of(tokenizer)
    closing = _marked(delimiters.closing, marks)
    if closing.startswith(MARK):  # one token, which is never there in part
        ends = (tuple(tokenizer.encode_chat(delimiters.closing)),) * len(closing)
    else:
        ends = tuple(tuple(tokenizer.encode_chat(delimiters.closing[place:])) for place in range(len(closing)))
    last = tuple(tokenizer.encode_chat(delimiters.next_message + delimiters.answer))
    first = tuple(tokenizer.encode_chat(delimiters.next_message)) if tools else last
    ending = {*first, *last, *(token for end in ends for token in end)}
    return ThoughtLimit(
        0,
        _marked(delimiters.opening, marks),
        closing,
        ends,
        (first, last),
        once=not delimiters.next_message,
        bytes_of=_bytes_of(tokenizer, marks),
        masks=MappingProxyType({token: _mask(token, vocab_size) for token in (None, *ending)}),
    )


def _delimiters_of(tokenizer: Tokenizer, answers: Format) -> _Delimiters | None:
    """Return the delimiters of the checkpoint's own response template, or else of its family."""
    fields = {} if answers.template is None else answers.template.fields
    field = next((fields[name] for name in REASONING_KEYS if name in fields), None)
    if field is None:
        return None
    family = reasoning_delimiters(tokenizer.template_with_tools or "")
    if family is not None and family[0] == CHANNELS:
        closing, _, rest = family[1].partition("<|start|>")
        return _Delimiters(family[0], closing, f"<|start|>{rest}", FINAL)
    own = _literal(field.open), _literal(field.close)
    if own[0] is not None and own[1] is not None:
        return _Delimiters(own[0], own[1])
    return None if family is None else _Delimiters(*family)


def _literal(delimiter: Delimiter | None) -> str | None:
    return remove_signs(delimiter.texts[0]) if isinstance(delimiter, Literals) else None


def _open_thought(template: ResponseTemplate, tail: str) -> str | None:
    """Return the text of an open thought at the end of a prompt, or None."""
    span = ResponseParser(template, f"{tail}x").last_span  # a delimiter at the very end of a text may go on
    if span.field not in REASONING_KEYS:
        return None
    return remove_signs(tail[template.anchor.last_end(tail) or 0 :][span.start :])


def _open_text(limit: ThoughtLimit, prompt: Sequence[int]) -> str | None:
    """Return the text of an open thought at the end of a prompt without a known start of an answer, or None."""
    _, opening, rest = b"".join(map(limit.bytes_of, prompt)).rpartition(limit.opening)
    return rest.replace(MARK, b"").decode("utf-8", "replace") if opening and limit.closing not in rest else None


def _marked(text: str, marks: Marks) -> bytes:
    """Return the bytes of a text, with a byte before each delimiter token."""
    return MARK.join(part.encode() for part in marks.with_signs(text).split(SIGN))


def _bytes_of(tokenizer: Tokenizer, marks: Marks) -> Callable[[int], bytes]:
    """Return the function from a token to its bytes, with `MARK` before a delimiter token."""

    @lru_cache(maxsize=65536)
    def bytes_of(token: int) -> bytes:
        text = token_bytes(tokenizer, token)
        is_mark = token in tokenizer.added_ids and text.decode("utf-8", "replace") in marks.texts
        return MARK + text if is_mark else text

    return bytes_of


def _mask(token: int | None, vocab_size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the mask of one token, or of all tokens for None, as in `Allowed.bits`."""
    words = -(-vocab_size // 32)
    if token is None:
        return np.full(words, -1, np.int32)
    bits = np.zeros(words, np.uint32)
    bits[token // 32] = 1 << token % 32
    return bits.view(np.int32)


def check_closing(request: Request) -> None:
    """Check the bans of a request with a budget of thoughts.

    Raises:
        InvalidRequest: a parameter bans a token of the closing delimiter.
    """
    assert request.thoughts is not None
    params = request.params
    banned = {token for token, bias in params.logit_bias if bias == -inf}
    banned |= {word[0] for word in request.bad_words if len(word) == 1}
    closing = request.thoughts.masks.keys() - {None}
    missing = closing & banned if params.allowed_token_ids is None else closing - (params.allowed_token_ids - banned)
    if missing:
        raise InvalidRequest.of(
            "thinking_budget",
            f"thinking_budget={params.thinking_budget} ends thoughts by tokens that logit_bias, bad_words or "
            f"allowed_token_ids ban: {', '.join(map(str, sorted(filter(None, missing))))}. Allow them, or leave it out",
        )
