"""Checks of sampling parameters; each returns the value in one form."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

from rekindle.core.buckets import MAX_PROCESSOR_ARGS
from rekindle.core.errors import InvalidRequest
from rekindle.core.request import checks, constraint
from rekindle.core.request.activations.capture import capture
from rekindle.core.request.activations.steering import patches, steerings
from rekindle.core.request.repetition import repetition_limit

MOST_TOKENS = 2**30
"""Upper bound for numbers of tokens: larger than any context, and small enough to add two such numbers."""
MOST_DRAWS = 2**16
COLDEST, HOTTEST = 1e-5, 100.0
"""Bounds of a temperature above 0: float32 holds any logit divided by either. A colder one counts as 0, as in vLLM."""
LEAST_TOP_P = 1e-9
"""The least share of probability above 0."""
LONGEST_SALT = 1024
LONGEST_NAME = 256

LogprobsOf = Literal["model", "sampled", "allowed"]
Side = Literal["left", "right"]


def check_draws(n: Any) -> int:
    """Validate a number of samples or of forks.

    Raises:
        InvalidRequest: `n` is not an integer from 1 to `MOST_DRAWS`.
    """
    return checks.integer("n", n, 1, MOST_DRAWS)


def _seed(name: str, value: Any) -> int | None:
    seed: int = checks.integer(name, value, -1, 2**64 - 1)
    return None if seed == -1 else seed


def _top_p(name: str, value: Any) -> float:
    top_p: float = checks.number(name, value, 0.0, 1.0)
    return max(LEAST_TOP_P, top_p) if top_p else 0.0


def _length(name: str, value: Any) -> int:
    length: int = checks.integer(name, value, -1, MOST_TOKENS)
    if length == 0:
        raise InvalidRequest(f"{name} must be at least 1, or -1 for as many tokens as fit, got 0")
    return length


CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "logit_bias": checks.bias,
    "repetition_penalty": partial(checks.number, low=1e-3, high=1e3),
    "frequency_penalty": partial(checks.number, low=-2.0, high=2.0),
    "presence_penalty": partial(checks.number, low=-2.0, high=2.0),
    "bad_words": checks.words,
    "min_tokens": partial(checks.integer, low=0, high=MOST_TOKENS),
    "allowed_token_ids": checks.unless_none(checks.some_token_ids),
    "processor_args": checks.unless_none(partial(checks.numbers, low=-1e30, high=1e30, most=MAX_PROCESSOR_ARGS)),
    "temperature": lambda name, value: it if (it := checks.number(name, value, 0.0, HOTTEST)) >= COLDEST else 0.0,
    "top_k": lambda name, value: max(0, checks.integer(name, value, -1, 2**31 - 1)),
    "top_p": _top_p,
    "min_p": partial(checks.number, low=0.0, high=1.0),
    "seed": checks.unless_none(_seed),
    "max_tokens": checks.unless_none(partial(checks.integer, low=0, high=MOST_TOKENS)),
    "ignore_eos": checks.boolean,
    "stop_token_ids": checks.one_or_more_token_ids,
    "stop": checks.distinct_texts,
    "keep_stop": checks.boolean,
    "stop_on_repetition": repetition_limit,
    "thinking_budget": checks.unless_none(partial(checks.integer, low=0, high=MOST_TOKENS)),
    "skip_special_tokens": checks.boolean,
    "logprobs": partial(checks.count_or_none, high=2**31 - 1),
    "logprobs_of": partial(checks.one_of, allowed=get_args(LogprobsOf)),
    "prompt_logprobs": partial(checks.count_or_none, high=2**31 - 1),
    "prompt_logprobs_from": partial(checks.integer, low=0, high=MOST_TOKENS),
    "truncate_prompt_tokens": checks.unless_none(_length),
    "truncation_side": partial(checks.one_of, allowed=get_args(Side)),
    "cache_salt": partial(checks.text, longest=LONGEST_SALT),
    "adapter": checks.unless_none(partial(checks.text, longest=LONGEST_NAME)),
    "steer": steerings,
    "patch": patches,
    "capture": checks.unless_none(capture),
    "draft": partial(checks.one_of, allowed=("lookup", "mtp", False, None)),
    "priority": partial(checks.integer, low=-(2**31), high=2**31 - 1),
    "json_schema": checks.unless_none(constraint.json_schema),
    "regex": checks.unless_none(constraint.regex),
    "choice": checks.unless_none(constraint.choice),
    "grammar": checks.unless_none(constraint.grammar),
}
