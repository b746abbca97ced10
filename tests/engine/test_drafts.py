"""Drafts on the default model: the tokens and log-probabilities of single steps, bit for bit."""

from collections.abc import Iterator
from typing import Any

import pytest

import rekindle
from tests.engine.small import SMOLLM2
from tests.waiting import PATIENCE

TEXT = "The keeper of the lighthouse walked down the long stairs at six, and wrote the height of the tide in his book."
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPTS = [
    f"Repeat: {TEXT}\nRepeat: {TEXT}\nRepeat:",
    "Two people as JSON, Anna (31) and Bob (45): ",
    "1 2 3 1 2 3 1 2",
]
OPTIONS: list[dict[str, Any]] = [
    {"logprobs": 2},
    {"temperature": 0.7, "seed": 3, "n": 2},
    {"temperature": 1.5, "seed": 4, "top_p": 0.9, "min_p": 0.01, "logprobs": 3, "logprobs_of": "sampled"},
    {"logit_bias": {28: 1.5}, "min_tokens": 30, "stop": ["tide in"]},
    {"json_schema": {"type": "array", "items": PERSON, "minItems": 2, "maxItems": 3}},
    {"json_schema": {"type": "array", "items": PERSON, "minItems": 2}, "temperature": 1.0, "seed": 5, "logprobs": 1},
    {"regex": r"(the long stairs |wrote the tide, )+at six"},
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({}, id="packed"),
        pytest.param({"dtype": "bfloat16", "weights": "dequantized"}, id="bfloat16", marks=pytest.mark.wide),
        pytest.param({"dtype": "float32", "weights": "dequantized"}, id="float32", marks=pytest.mark.wide),
    ],
)
def session(request: pytest.FixtureRequest) -> Iterator[rekindle.Session]:
    settings = {**SMOLLM2, **request.param}
    with rekindle.open_sync("smollm2-135m-instruct", progress=False, disk_cache_bytes=0, **settings) as session:
        session.precompiled_sync(progress=False)
        yield session
        assert session.stats.unexpected_compilations == 0


def facts_of(generation: rekindle.Generation) -> tuple[Any, ...]:
    """Return all that a draft must not change."""
    return generation.token_ids, generation.text, generation.finish_reason, generation.logprobs


@pytest.mark.wide
@pytest.mark.parametrize("prompt", PROMPTS)
def test_drafts_change_no_token_and_no_log_probability(session: rekindle.Session, prompt: str) -> None:
    before = session.stats.scheduler

    def answers(draft: Any, **options: Any) -> list[tuple[Any, ...]]:
        n = options.pop("n", 1)
        handles = [
            session.submit(prompt, draft=draft, max_tokens=60, **(options | {"seed": options.get("seed", 0) + number}))
            if "seed" in options
            else session.submit(prompt, draft=draft, max_tokens=60, **options)
            for number in range(n)
        ]
        return [facts_of(handle.result(timeout=PATIENCE)) for handle in handles]

    for options in OPTIONS:
        alone = answers(False, **options)
        assert answers("lookup", **options) == alone
        assert answers("lookup", **options) == alone  # now with finished outputs to draft from
    after = session.stats.scheduler
    assert after.accepted_tokens - before.accepted_tokens > 100
    assert after.drafted_tokens - before.drafted_tokens > after.accepted_tokens - before.accepted_tokens


@pytest.mark.wide
def test_requests_together_keep_their_tokens(session: rekindle.Session) -> None:
    pairs = [(prompt, {k: v for k, v in options.items() if k != "n"}) for prompt in PROMPTS for options in OPTIONS]
    alone = [session.generate_sync(prompt, draft=False, max_tokens=40, **options) for prompt, options in pairs]
    handles = [session.submit(prompt, draft="lookup", max_tokens=40, **options) for prompt, options in pairs]
    for handle, expected in zip(handles, alone, strict=True):
        assert facts_of(handle.result(timeout=PATIENCE)) == facts_of(expected)
