"""What a user asks for: sampling parameters, checked where they are given, and the request that carries them."""

import difflib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from numbers import Real
from typing import Any, TypedDict

from rekindle.errors import InvalidRequest, PromptTooLong

NOT_YET = frozenset(
    {
        "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "prompt_logprobs",
        "stop", "n", "min_tokens", "allowed_token_ids", "bad_words",
    }
)  # fmt: skip
"""Parameters that other engines know and this version rejects by name, rather than ignore them."""


class SamplingOptions(TypedDict, total=False):
    """The sampling keywords of `generate`, `stream` and `submit`; `SamplingParams` says what each does."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    ignore_eos: bool
    stop_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next tokens are chosen and when they end. Applied in the order of the attributes.

    Attributes:
        temperature: divisor of the logits; 0 always takes the likeliest token.
        top_k: keep only this many likeliest tokens; 0 keeps all.
        top_p: keep the fewest likeliest tokens that together have at least this probability, in (0, 1].
        min_p: keep tokens at least this many times as likely as the likeliest, in [0, 1].
        seed: makes the draws repeatable, from 0 to 2**31 - 1; None draws a fresh one.
        max_tokens: the most tokens to generate, at least 1.
        ignore_eos: do not end at the model's own end tokens; `stop_token_ids` still end.
        stop_token_ids: further token ids that end the request, included in its output.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 256
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "SamplingParams":
        """Check the keywords of a call.

        Raises:
            InvalidRequest: an unknown or not yet supported keyword, or a value out of its range.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name in NOT_YET:
                raise InvalidRequest(f"{name} is not supported yet; supported are {', '.join(known)}")
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
                raise InvalidRequest(f"unknown sampling parameter {name!r}{hint}")
        return cls(**{name: _CHECKS[name](name, value) for name, value in options.items()})


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt with its sampling parameters, ready to be scheduled.

    Attributes:
        id: its identity everywhere; never used twice in one engine.
        prompt: token ids, at least one.
        params: as checked, with a seed.
        end_ids: the token ids that end it.
        capacity: the most tokens, prompt and output together, that the context and the page pool can hold.
    """

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    end_ids: frozenset[int]
    capacity: int


def check_token_ids(name: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """A prompt of token ids as a tuple.

    Raises:
        InvalidRequest: not integers, none of them, or one outside the vocabulary.
    """
    checked = _token_ids(name, ids)
    wrong = [token for token in checked if not 0 <= token < vocab_size]
    if wrong:
        raise InvalidRequest(f"{name} must be from 0 to {vocab_size - 1}, got {wrong[0]}")
    if not checked:
        raise InvalidRequest(f"{name} is empty; a prompt needs at least one token")
    return checked


def check_length(prompt: Sequence[int], capacity: int) -> None:
    """See that a prompt of token ids leaves room for one token of output.

    Raises:
        PromptTooLong: it does not.
    """
    if len(prompt) >= capacity:
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens; at most {capacity - 1} fit with one token of output. "
            "Shorten it, or raise max_context or num_pages in open(), up to what the model was made for"
        )


# What a check returns is of Python's own types: a numpy int8 would overflow where a length is added to it.


def _token_ids(name: str, ids: Any) -> tuple[int, ...]:
    try:
        tokens = [None] if isinstance(ids, str | bytes) else [_as_integer(token) for token in ids]
    except TypeError:
        tokens = [None]
    known = tuple(token for token in tokens if token is not None)
    if len(known) < len(tokens):
        raise InvalidRequest(f"{name} must be a sequence of integers, got {ids!r:.80}")
    return known


def _as_integer(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _integer(name: str, value: Any, low: int, high: int) -> int:
    number = _as_integer(value)
    if number is None or not low <= number <= high:
        raise InvalidRequest(f"{name} must be an integer from {low} to {high}, got {value!r:.80}")
    return number


def _number(name: str, value: Any, low: float, high: float, above_low: bool = False) -> float:
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not low <= number <= high or (above_low and number == low):
        interval = f"{'above' if above_low else 'at least'} {low:g}" + (
            f" and at most {high:g}" if high < math.inf else ""
        )
        raise InvalidRequest(f"{name} must be a finite number {interval}, got {value!r:.80}")
    return number


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be True or False, got {value!r:.80}")
    return value


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "temperature": partial(_number, low=0.0, high=math.inf),
    "top_k": partial(_integer, low=0, high=2**31 - 1),
    "top_p": partial(_number, low=0.0, high=1.0, above_low=True),
    "min_p": partial(_number, low=0.0, high=1.0),
    "seed": lambda name, value: None if value is None else _integer(name, value, 0, 2**31 - 1),
    "max_tokens": partial(_integer, low=1, high=2**31 - 1),
    "ignore_eos": _boolean,
    "stop_token_ids": lambda name, value: frozenset(_token_ids(name, value)),
}
