"""The engine's greedy tokens are the reference's, however the work is cut up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.settings.engine import SettingsOptions
from tests.engine.small import FEW_PAGES, SMOLLM2
from tests.families import families_by_tier

Golden = dict[str, Any]
SHORTAGE: SettingsOptions = {"num_pages": 21}
"""Settings with 20 pages of 16 tokens; the eight goldens together need almost twice as many."""
WAYS: dict[str, SettingsOptions] = {
    "room for all": {},
    "chunks of 16, combined ticks, no overlap": {"prefill_chunk": 16, "ticks": "combined", "overlap": False},
    "shortage, chunks of 16, combined ticks": {**SHORTAGE, "prefill_chunk": 16, "ticks": "combined"},
    "shortage, no overlap": {**SHORTAGE, "overlap": False},
}
NEW = 48
PAGE = 16
ALONE = 8
"""The new tokens of a request by itself: its steps are the steps of a batch with empty rows."""
MARKS = {
    "room for all": pytest.mark.wide,  # packed weights, which are the default, give the same tokens and texts
    "chunks of 16, combined ticks, no overlap": pytest.mark.deep,  # the others have its parts too; it takes a minute
    "shortage, chunks of 16, combined ticks": pytest.mark.wide,
    "shortage, no overlap": pytest.mark.deep,
}
CORE = {"qwen3"}
"""The family that is not wide."""


def prompts(goldens: Sequence[Golden]) -> list[Any]:
    return [golden.get("prompt") or golden["messages"] for golden in goldens]


@pytest.mark.parametrize("way", [pytest.param(way, marks=MARKS.get(way, ())) for way in WAYS])
def test_smollm2_greedy_tokens_and_text(way: str, smollm2_goldens: list[Golden]) -> None:
    settings: SettingsOptions = {**SMOLLM2, "weights": "dequantized", **WAYS[way]}
    with rekindle.open_sync("smollm2-135m-instruct", progress=False, **settings) as session:
        options: dict[str, Any] = {"logprobs": 5, "prompt_logprobs": 0}
        together = session.generate_sync(prompts(smollm2_goldens), max_tokens=NEW, **options)
        shortage = session.stats.scheduler.preemptions
        for generation, golden in zip(together, smollm2_goldens, strict=True):
            _check(generation, golden, NEW)
            assert generation.text == golden["text"]
            assert generation.finish_reason == ("length" if len(golden["new_ids"]) == NEW else "stop")
        if "shortage" not in way:
            for prompt, golden in zip(prompts(smollm2_goldens), smollm2_goldens, strict=True):
                _check(session.generate_sync(prompt, max_tokens=ALONE, **options), golden, ALONE)
        assert (shortage > 0) == ("shortage" in way), "the pool was meant to be short, or not"
        stats = session.stats
        assert stats.unexpected_compilations == 0
        assert stats.scheduler.free_pages == stats.scheduler.pages


def test_smollm2_draws_the_same_tokens_with_packed_weights(smollm2_goldens: list[Golden]) -> None:
    with rekindle.open_sync("smollm2-135m-instruct", progress=False, weights="packed", **SMOLLM2) as session:
        options: dict[str, Any] = {"logprobs": 5, "prompt_logprobs": 0}
        for generation, golden in zip(
            session.generate_sync(prompts(smollm2_goldens), max_tokens=NEW, **options), smollm2_goldens, strict=True
        ):
            _check(generation, golden, NEW, 1e-2)
            assert generation.text == golden["text"]
            assert generation.finish_reason == ("length" if len(golden["new_ids"]) == NEW else "stop")
        assert session.stats.unexpected_compilations == 0


def _check(generation: rekindle.Generation, golden: Golden, new: int, most: float = 1e-3) -> None:
    """Check the tokens, their first ranks, and the log-probabilities of the first token and of the prompt."""
    assert list(generation.token_ids) == golden["new_ids"][:new]
    assert generation.usage.prompt_tokens == len(golden["prompt_ids"])
    assert generation.logprobs is not None
    assert generation.prompt_logprobs is not None
    first, prompt = generation.logprobs[0], generation.prompt_logprobs
    assert [top.token_id for top in first.top] == golden["first_top5_ids"]
    np.testing.assert_allclose([top.logprob for top in first.top], golden["first_top5_logprobs"], atol=most)
    assert [score.token_id for score in generation.logprobs] == golden["new_ids"][:new]
    assert {score.rank for score in generation.logprobs} == {1}
    assert [score and score.token_id for score in prompt] == [None, *golden["prompt_ids"][1:]]
    np.testing.assert_allclose([score.logprob for score in prompt if score], golden["prompt_logprobs"], atol=most)


@pytest.mark.parametrize("family", families_by_tier(CORE))
@pytest.mark.filterwarnings("ignore:.*separate head")
def test_families_greedy_tokens(family: str, families: Path) -> None:
    """Check a request alone, in chunks, in a batch with preemptions, and with its prefix from each tier."""
    golden = np.load(families / family / "golden.npz")
    prompt, expected = golden["greedy_prompt"].tolist(), tuple(golden["greedy_new"].tolist())
    options: dict[str, Any] = {"max_tokens": len(expected), "ignore_eos": True}
    with rekindle.open_sync(families / family, progress=False, **FEW_PAGES) as session:
        alone = session.generate_sync(token_ids=prompt, **options)
        batch = session.generate_sync(token_ids=[prompt[:5], prompt, prompt[3:], prompt[1:]], **options)
        assert session.stats.scheduler.preemptions > 0
        again = session.generate_sync(token_ids=prompt, **options)
    with rekindle.open_sync(families / family, progress=False, **FEW_PAGES) as session:
        restarted = session.generate_sync(token_ids=prompt, **options)
        assert session.stats.unexpected_compilations == 0
    assert [each.token_ids for each in (alone, batch[1], again, restarted)] == [expected] * 4
    assert (alone.cached_tokens, again.cached_tokens, restarted.cached.disk) == (0, PAGE, PAGE)
    assert alone.text == "", "this model has no tokenizer"


@pytest.mark.wide
def test_bfloat16_text_is_sane() -> None:
    with rekindle.open_sync(
        "smollm2-135m-instruct", dtype="bfloat16", progress=False, precompile="lazy", max_running=1
    ) as session:
        answer = session.generate_sync([{"role": "user", "content": "What is the capital of France?"}], max_tokens=24)
    assert answer.text == "The capital of France is Paris."
