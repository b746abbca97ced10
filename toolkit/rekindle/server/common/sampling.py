"""Fields of all bodies for a generated text: sampling, constraints on the output, streams and reports."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rekindle.core.request.accepted import COLDEST
from rekindle.core.request.checks import preview
from rekindle.server.common.call import Streaming, TokenReports
from rekindle.server.common.captures import FIELD as CAPTURE
from rekindle.server.common.fields import Fields

ConstraintEntry = tuple[str, str, Any]
"""The field of a constraint, the keyword of the session, and its value."""
GUIDED = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""The keyword of the session for each of vLLM's constraints."""
ANY_OBJECT = {"type": "object"}
MAX_CHOICES = 128
"""The most choices of one prompt, as in OpenAI's API."""

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
    "thinking_token_budget": "thinking_budget",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "truncate_prompt_tokens": "truncate_prompt_tokens",
    "truncation_side": "truncation_side",
    "cache_salt": "cache_salt",
    "draft": "draft",
    "priority": "priority",
}
"""The keyword of the session for each field of a body."""
SAMPLING_ONLY = ("seed", "top_p", "top_k", "min_p")
"""Keywords without effect at temperature 0. Clients send them anyway, so they are dropped."""
INTEGERS = ("max_tokens", "min_tokens", "seed", "top_k")
"""Keywords with integers, which some clients write as floats."""
THOUGHTS = ("reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget")
"""Fields of llama.cpp for a budget of thoughts; -1 is no limit."""
IDLE_ALONE: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "keep_stop": ("stop", (True, False)),
    "truncation_side": ("truncate_prompt_tokens", ("left", "right")),
}
"""Keywords without effect without another one, with their values. Clients send them anyway, so they are dropped."""
_LEAST_SEED = -(2**63)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "early_stopping": (False,),
    "length_penalty": (1, 1.0),
    "return_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
"""Field values equivalent to an absent field."""


def whole_number(value: Any) -> Any:
    """Return a float without a fraction as an integer, and any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sampling(body: Fields, *limits: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the sampling keywords of a body, and the field of each.

    Args:
        body: the fields of the body.
        limits: the fields for the most tokens to generate, in order of precedence.
    """
    options: dict[str, Any] = {}
    fields: dict[str, str] = {}
    for field, keyword in SAMPLING.items():
        value = body.any(field)
        if value is not None:
            options[keyword], fields[keyword] = whole_number(value) if keyword in INTEGERS else value, field
    for field in limits:
        value = whole_number(body.any(field))
        if value is not None and "max_tokens" not in options:
            no_limit = field == "max_tokens" and type(value) is int and value == -1  # as in llama.cpp
            options["max_tokens"], fields["max_tokens"] = None if no_limit else value, field
    for field in THOUGHTS:
        value = whole_number(body.any(field))
        if value is not None and value != -1:
            options["thinking_budget"], fields["thinking_budget"] = value, field
    entry = constraint(body)
    if entry is not None:
        if entry[1] != "grammar":
            options.pop("thinking_budget", None)  # there is no room for thoughts
        field, keyword, value = entry
        options[keyword], fields[keyword] = value, field
    if (pattern := body.take_fields("repetition_detection")) is not None:
        options["stop_on_repetition"] = _repetition(pattern)
        fields["stop_on_repetition"] = "repetition_detection"
    for keyword, (other, values) in IDLE_ALONE.items():
        if options.get(other) in (None, "", []) and options.get(keyword) in values:
            options.pop(keyword, None)
    if type(seed := options.get("seed")) is int and _LEAST_SEED <= seed < -1:
        options["seed"] = seed % 2**64  # vLLM takes signed seeds
    return without_idle(options), fields


def without_idle(options: dict[str, Any]) -> dict[str, Any]:
    """Return keywords without those of no effect at temperature 0; a temperature that counts as 0 becomes 0."""
    temperature = options.get("temperature")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < COLDEST:
        return options
    return {**{name: value for name, value in options.items() if name not in SAMPLING_ONLY}, "temperature": 0}


def _repetition(pattern: Fields) -> dict[str, int] | bool:
    """Return the limit of repetition in vLLM's form: sizes of patterns, and the number of occurrences."""
    longest, shortest = pattern.take("max_pattern_size", int) or 0, pattern.take("min_pattern_size", int) or 1
    times = pattern.take("min_count", int) or 0
    pattern.finish({})
    if longest == 0:
        return False
    return {"longest": longest, "shortest": shortest, "times": times, "tokens": 0}


def streaming(body: Fields) -> Streaming | None:
    """Return the stream options of a body, or None for a complete answer."""
    stream, options = body.flag("stream"), body.take_fields("stream_options")
    if options is None:
        return Streaming() if stream else None
    if not stream:
        body.refuse("stream_options", "requires stream=true")
    usage, continuous = options.flag("include_usage"), options.flag("continuous_usage_stats")
    options.finish({}, ("include_obfuscation",))
    return Streaming(usage, usage and continuous)


def token_reports(body: Fields, options: dict[str, Any], fields: dict[str, str]) -> TokenReports:
    """Take the fields for reports about single tokens, and add the keyword that they need."""
    count = body.take("prompt_logprobs", int)
    if count is not None:
        options["prompt_logprobs"], fields["prompt_logprobs"] = count, "prompt_logprobs"
        if body.peek(("stream",)).get("stream") is True:
            body.refuse("prompt_logprobs", "is not served as a stream; leave out stream")
    if (capture := body.any(CAPTURE)) is not None:
        options[CAPTURE], fields[CAPTURE] = capture, CAPTURE
        if body.peek(("stream",)).get("stream") is True:
            body.refuse(CAPTURE, "is not served as a stream; leave out stream")
    ids, by_id = body.flag("return_token_ids"), body.flag("return_tokens_as_token_ids")
    return TokenReports(count is not None, ids, by_id)


def choice_count(body: Fields) -> int:
    """Return the number of choices for each prompt, from the field `n`."""
    n = body.take("n", int)
    if n is not None and not 1 <= n <= MAX_CHOICES:
        body.refuse("n", f"must be from 1 to {MAX_CHOICES}, got {n}")
    return n or 1


def repeat_prompts(prompts: list[Any], options: Mapping[str, Any], n: int) -> tuple[list[Any], int | None]:
    """Return the prompts and `n` for the session; at temperature 0, repeat the prompts and return None for `n`."""
    if n > 1 and options.get("temperature") == 0:
        return [prompt for prompt in prompts for _ in range(n)], None
    return prompts, n if n > 1 else None


def constraint(body: Fields) -> ConstraintEntry | None:
    """Return the constraint on the output, or None if there is none.

    Raises:
        ApiError: two fields constrain the output in different ways, or one has an unknown form.
    """
    entries = [*_response_format(body), *_guided(body), *_structured(body)]
    for field, keyword, value in entries[1:]:
        if (keyword, _parsed(keyword, value)) != (entries[0][1], _parsed(*entries[0][1:])):
            body.refuse(field, f"and {entries[0][0]} both constrain the output; give one of them")
    return entries[0] if entries else None


def _parsed(keyword: str, value: Any) -> Any:
    """Return a schema as an object, for comparison; another constraint as it is."""
    if keyword == "json_schema" and isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _response_format(body: Fields) -> Iterator[ConstraintEntry]:
    response_format = body.take_fields("response_format")
    if response_format is None:
        return
    match response_format.take("type", str):
        case "text":
            pass
        case "json_object":
            yield "response_format", "json_schema", response_format.take("schema", dict) or ANY_OBJECT
        case "json_schema" if response_format.peek(("schema",)):  # llama.cpp's form
            yield "response_format", "json_schema", response_format.take("schema", dict)
        case "json_schema":
            yield "response_format", "json_schema", read_schema(response_format, "json_schema")
        case None:
            response_format.refuse_missing("type")
        case kind:
            response_format.refuse("type", f"must be text, json_object or json_schema, got {preview(kind)}")
    response_format.finish({})


def read_schema(parent: Fields, name: str) -> dict[str, Any]:
    """Take the schema out of a field with a schema, its name and its description."""
    wrapper = parent.take_fields(name)
    if wrapper is None:
        parent.refuse_missing(name)
    schema = wrapper.require("schema", dict)
    wrapper.finish({}, ("name", "description", "strict"))
    return schema


def _guided(body: Fields) -> Iterator[ConstraintEntry]:
    for name, keyword in GUIDED.items():
        value = body.any(f"guided_{name}")
        if value is not None:
            yield f"guided_{name}", keyword, value


def _structured(body: Fields) -> Iterator[ConstraintEntry]:
    structured = body.take_fields("structured_outputs")
    if structured is None:
        return
    for name, keyword in GUIDED.items():
        value = structured.any(name)
        if value is not None:
            yield "structured_outputs", keyword, value
    if structured.flag("json_object"):
        yield "structured_outputs", "json_schema", ANY_OBJECT
    structured.finish({})
