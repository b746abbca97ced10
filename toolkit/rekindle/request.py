"""What a user asks for: sampling parameters, checked where they are given, and the request that carries them."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from rekindle.errors import InvalidRequest

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
        values = {name: options[name] for name in options}
        if "stop_token_ids" in values:
            values["stop_token_ids"] = _token_ids("stop_token_ids", values["stop_token_ids"])
        params = cls(**values)
        params._check()
        return params

    def _check(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf)
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**31 - 1)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest(f"ignore_eos must be True or False, got {self.ignore_eos!r}")


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
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if wrong:
        raise InvalidRequest(f"{name} must be from 0 to {vocab_size - 1}, got {wrong[0]}")
    if not checked:
        raise InvalidRequest(f"{name} is empty; a prompt needs at least one token")
    return tuple(int(token) for token in ids)


def _token_ids(name: str, ids: Any) -> frozenset[int]:
    try:
        tokens = list(ids)
    except TypeError:
        tokens = [None]
    if isinstance(ids, str | bytes) or not all(_is_integer(token) for token in tokens):
        raise InvalidRequest(f"{name} must be a sequence of integers, got {ids!r:.80}")
    return frozenset(int(token) for token in tokens)


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if not _is_integer(value) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be an integer from {low} to {high}, got {value!r}")


def _number(name: str, value: Any, low: float, high: float, above_low: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not low <= value <= high or (above_low and value == low):
        interval = f"{'above' if above_low else 'at least'} {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
        raise InvalidRequest(f"{name} must be a finite number {interval}, got {value!r}")
