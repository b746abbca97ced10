"""A request's tokens depend on the request alone, with any mix of parameters, alone and in any batch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekindle.client.handle import Handle
from rekindle.core.request.params import SamplingOptions
from rekindle.core.request.tokens import TokenLogprob
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.testing import VOCAB_SIZE, expected_of, score_of
from tests.unit.limits import WAYS
from tests.unit.stages import Stages, request_of, shuffled

pytestmark = pytest.mark.filterwarnings("ignore::rekindle.ParametersIgnored")  # some are mixed with temperature 0

EOS = frozenset({7, 77, 177})
TOKEN = st.integers(0, VOCAB_SIZE - 1)
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-math.inf, -1e6, -0.5, 0.0, 3.0]), max_size=30),
    "repetition_penalty": st.sampled_from([0.5, 1.0, 1.2]),
    "frequency_penalty": st.sampled_from([-2.0, 0.0, 2.0]),
    "presence_penalty": st.sampled_from([-2.0, 0.0, 2.0]),
    "bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=4), max_size=10),
    "min_tokens": st.integers(0, 60),
    "allowed_token_ids": st.none() | st.sets(TOKEN, min_size=70, max_size=100).map(sorted),
    "processor_args": st.none() | st.lists(st.floats(-1e30, 1e30), max_size=8),
    "temperature": st.sampled_from([0.0, 0.7, 1.0]),
    "top_k": st.sampled_from([0, 1, 40]),
    "top_p": st.sampled_from([0.1, 0.9, 1.0]),
    "min_p": st.sampled_from([0.0, 0.05, 1.0]),
    "ignore_eos": st.booleans(),
    "stop_token_ids": st.lists(TOKEN, max_size=20),
    "logprobs": st.none() | st.integers(0, 20),
    "logprobs_of": st.sampled_from(["model", "sampled", "allowed"]),
    "prompt_logprobs": st.none() | st.integers(0, 20),
    "prompt_logprobs_from": st.integers(0, 45),
    "cache_salt": st.sampled_from(["", "a"]),
    "priority": st.integers(-1, 1),
}
CONSTRAINTS: dict[str, list[Any]] = {
    "json_schema": [{"type": "array", "items": {"type": "integer"}, "minItems": 2}, {"enum": [1, "b"]}],
    "regex": ["[a-z]{1,30}", "(foo|bar)+ba?z", "A very long text without any choice at all|[0-9]+"],
    "choice": [["yes", "no"], ["the only one"]],
    "grammar": ['start: "x" | "(" start ")"'],
}
BANS = {"logit_bias", "bad_words", "min_tokens", "allowed_token_ids", "ignore_eos", "stop_token_ids"}
BANS |= {"repetition_penalty", "frequency_penalty", "presence_penalty"}  # which are bans in the fake
"""The parameters with possible dead ends for a constraint; test_constraints.py mixes some."""
CONSTRAINT = st.none() | st.sampled_from([{name: value} for name, values in CONSTRAINTS.items() for value in values])
OPTIONS = st.fixed_dictionaries(
    {"max_tokens": st.sampled_from([60, 20, 5, 1]), "seed": st.integers(0, 2**64 - 1)}, optional=PARAMETERS
)
ROOMY = st.fixed_dictionaries(
    WAYS
    | {
        "page_size": st.sampled_from([16, 64]),
        "max_running": st.sampled_from([8, 3, 1]),
        "max_prefill_tokens": st.sampled_from([512, 48]),
        "prefill_chunk": st.sampled_from([512, 16]),
        "max_context": st.sampled_from([None, 50]),
    }
)
CROWDED = st.fixed_dictionaries(
    WAYS
    | {
        "num_pages": st.integers(6, 10),
        "max_running": st.integers(2, 5),
        "prefill_chunk": st.sampled_from([512, 16]),
    }
)


@dataclass(frozen=True)
class Ask:
    """One request; its parameters leave a token to choose at every step."""

    prompt: tuple[int, ...]
    options: SamplingOptions


def make_ask(prompt: list[int], options: SamplingOptions, constraint: dict[str, Any] | None) -> Ask:
    fewest = min(options.get("min_tokens", 0), options["max_tokens"] or 0)
    fitting: SamplingOptions = {"min_tokens": fewest}
    if options.get("logprobs") is None:
        fitting["logprobs_of"] = "model"
    has_scores = options.get("prompt_logprobs") is not None
    fitting["prompt_logprobs_from"] = min(options.get("prompt_logprobs_from", 0), len(prompt) - 1) if has_scores else 0
    mix: Any = {**options, **fitting}
    if constraint is not None:
        mix = {name: value for name, value in mix.items() if name not in BANS} | constraint
    return Ask(tuple(prompt), mix)


# At most 30 biases, 10 bad words and 23 end tokens can be banned at once, and at least 70 tokens are allowed.
ASK = st.builds(make_ask, prompt=st.lists(TOKEN, min_size=1, max_size=40), options=OPTIONS, constraint=CONSTRAINT)


def unnamed(scores: Sequence[TokenLogprob | None] | None) -> Any:
    """Return log-probabilities without the texts of their tokens."""
    if scores is None:
        return None
    return tuple(None if s is None else replace(s, text="", bytes=b"", top=unnamed(s.top)) for s in scores)


def assert_as_if_alone(ask: Ask, handle: Handle, stages: Stages) -> None:
    """Compare a request with the fake model's answer to it alone."""
    options, generation = ask.options, handle.result(timeout=0)
    ends = frozenset[int]() if options.get("ignore_eos") else EOS
    request = stages.constrained(request_of(ask.prompt, options, stages.limits.max_context, ends))
    expected = expected_of(request)
    assert generation.token_ids == expected
    stopped = expected[-1] if expected[-1] in request.end_ids else None
    if request.constrained is None:
        assert (generation.finish_reason, generation.stopped_by) == ("length" if stopped is None else "stop", stopped)
    else:
        assert generation.stopped_by == stopped
        assert stopped is not None or (generation.unparsed is None) == (generation.finish_reason == "stop")
    assert (generation.usage.prompt_tokens, generation.usage.completion_tokens) == (len(ask.prompt), len(expected))
    k = options.get("logprobs")
    assert unnamed(generation.logprobs) == (None if k is None else tuple(score_of(token, k) for token in expected))
    k = options.get("prompt_logprobs")
    first = max(1, options.get("prompt_logprobs_from", 0))
    scores = None if k is None else (*[None] * first, *(score_of(token, k) for token in ask.prompt[first:]))
    assert unnamed(generation.prompt_logprobs) == scores


def check(asks: list[Ask], limits: dict[str, Any], order: int, tokenizer: Tokenizer) -> None:
    limits |= {"logits_processor": lambda logits, row: logits}
    together, choose = Stages(tokenizer, EOS, **limits), shuffled(order)
    handles = []
    for ask in asks:
        handles.append(together.ask(ask.prompt, **ask.options))
        for _ in range(len(ask.prompt)):
            together.step(choose)
    together.run(choose)
    for ask, handle in zip(asks, handles, strict=True):
        assert_as_if_alone(ask, handle, together)
    stats = together.assert_nothing_is_left()
    assert stats.generated_tokens == sum(len(handle.result().token_ids) for handle in handles)
    alone = Stages(tokenizer, EOS, **limits)
    handle = alone.ask(asks[0].prompt, **asks[0].options)
    alone.run()
    assert handle.result(timeout=0).token_ids == handles[0].result().token_ids


STORY = {"asks": st.lists(ASK, min_size=1, max_size=6), "limits": ROOMY | CROWDED, "order": st.integers(0, 2**32)}
CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@settings(CALM, max_examples=40)
@given(**STORY)
def test_any_mix_of_parameters_gives_the_same_alone_and_in_any_batch(
    asks: list[Ask], limits: dict[str, Any], order: int, byte_tokenizer: Tokenizer
) -> None:
    check(asks, limits, order, byte_tokenizer)


@pytest.mark.deep
@settings(CALM, max_examples=2000, derandomize=False)
@given(**STORY)
def test_very_many_mixes_of_parameters_give_the_same_alone_and_in_any_batch(
    asks: list[Ask], limits: dict[str, Any], order: int, byte_tokenizer: Tokenizer
) -> None:
    check(asks, limits, order, byte_tokenizer)


def test_the_mixes_are_of_all_parameters() -> None:
    """Leave out the mixes of other tests.

    They are test_stop_strings_property.py (stop strings), test_repetition.py, test_thinking_budget.py,
    test_capture.py, test_drafts.py, test_text_tokenizer.py (cut prompts) and test_scheduler_machine.py (all others).
    """
    elsewhere = {"stop", "keep_stop", "skip_special_tokens", "stop_on_repetition", "adapter", "steer", "patch"}
    elsewhere |= {"truncate_prompt_tokens", "truncation_side", "thinking_budget", "capture", "draft"}
    assert {*PARAMETERS, *CONSTRAINTS, "max_tokens", "seed"} | elsewhere == set(SamplingOptions.__annotations__)
