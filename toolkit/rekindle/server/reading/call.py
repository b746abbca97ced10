"""What a body asks of a session: a prompt, and the keywords of its call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.server.reading.constraint import constraint
from rekindle.server.reading.fields import Fields

MOST_DRAWS = 128
"""The most draws of one prompt, which is that of OpenAI's API."""

SAMPLING: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "bad_words": "bad_words",
    "allowed_token_ids": "allowed_token_ids",
    "seed": "seed",
    "stop": "stop",
    "include_stop_str_in_output": "keep_stop",
    "stop_token_ids": "stop_token_ids",
    "min_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "cache_salt": "cache_salt",
    "priority": "priority",
}
"""The keywords of a session by the fields that say the same."""
DRAWN_BY = ("seed", "top_p", "top_k", "min_p")
"""Keywords that mean nothing at temperature 0, beside which clients send them all the same."""
_LEAST_SEED = -(2**63)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "early_stopping": (False,),
    "length_penalty": (1, 1.0),
    "return_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Values of fields that are as if they were not given."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """The usage that a stream has beside the text.

    Attributes:
        usage: whether a last chunk has the usage.
        each: whether all chunks have it.
    """

    usage: bool = False
    each: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `session.submit_all`.

    Attributes:
        prompt: its prompt; None if token ids are among the keywords.
        ask: its keywords.
        n: its number of draws; None for one, or where draws at temperature 0 are asked for as other prompts.
        draws: how many choices each prompt of the body has.
        fields: the field of the body that each keyword was made of.
        streaming: what a stream has; None if the answer comes as a whole.
    """

    prompt: Any
    ask: Mapping[str, Any]
    n: int | None
    draws: int
    fields: Mapping[str, str]
    streaming: Streaming | None

    @property
    def needs_calls(self) -> bool:
        """Tell whether the answer has to call a tool, so that its text is a call and nothing else."""
        return self.ask.get("tool_choice", "auto") not in ("auto", "none")


def sampling(body: Fields, *limits: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the sampling keywords of a body, and the field that each was made of.

    Args:
        limits: the fields that say how many tokens are generated at most; the first that is given does.
    """
    ask: dict[str, Any] = {}
    fields: dict[str, str] = {}
    for field, keyword in SAMPLING.items():
        value = body.any(field)
        if value is not None:
            ask[keyword], fields[keyword] = value, field
    for field in limits:
        value = body.any(field)
        if value is not None and "max_tokens" not in ask:
            ask["max_tokens"], fields["max_tokens"] = value, field
    found = constraint(body)
    if found is not None:
        field, keyword, value = found
        ask[keyword], fields[keyword] = value, field
    if type(seed := ask.get("seed")) is int and _LEAST_SEED <= seed < -1:
        ask["seed"] = seed % 2**64  # as in vLLM, whose seeds have a sign
    if ask.get("temperature") == 0:
        ask = {name: value for name, value in ask.items() if name not in DRAWN_BY}
    return ask, fields


def streaming(body: Fields) -> Streaming | None:
    """Return whether a body asks for a stream, and what it has."""
    stream, options = body.flag("stream"), body.within("stream_options")
    if options is None:
        return Streaming() if stream else None
    if not stream:
        body.refuse("stream_options", "is for streams; give stream=true beside it")
    usage, each = options.flag("include_usage"), options.flag("continuous_usage_stats")
    options.finish({}, ("include_obfuscation",))
    return Streaming(usage, usage and each)


def draws(body: Fields) -> int:
    """Return how many draws of each prompt a body asks for."""
    n = body.take("n", int)
    if n is not None and not 1 <= n <= MOST_DRAWS:
        body.refuse("n", f"must be from 1 to {MOST_DRAWS}, got {n}")
    return n or 1


def repeated(prompts: list[Any], ask: Mapping[str, Any], n: int) -> tuple[list[Any], int | None]:
    """Return prompts and draws of each. Draws at temperature 0 are all alike, and are asked for as other prompts."""
    if n > 1 and ask.get("temperature") == 0:
        return [prompt for prompt in prompts for _ in range(n)], None
    return prompts, n if n > 1 else None
