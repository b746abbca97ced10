"""A deterministic session gives a request the same tokens, to the last bit, whatever else runs or is cached."""

from pathlib import Path
from typing import Any, Unpack

import pytest

import rekindle
from rekindle.config import SettingsOptions

SETTINGS: SettingsOptions = {
    "deterministic": True,
    "dtype": "bfloat16",
    "num_pages": 40,
    "page_size": 16,
    "max_context": 160,
    "max_running": 4,
    "max_prefill_tokens": 64,
    "prefill_chunk": 64,
    "precompile": "lazy",
}
OPTIONS: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "temperature": 1.0, "seed": 3, "logprobs": 2}


@pytest.fixture(scope="module")
def model(families: Path) -> Path:
    return families / "qwen3"


def opened(model: Path, **settings: Unpack[SettingsOptions]) -> rekindle.Session:
    return rekindle.open_sync(model, progress=False, **(SETTINGS | settings))


def test_answers_are_the_same_to_the_last_bit_in_any_batch_and_from_any_tier(model: Path) -> None:
    prompts = [[(place * number) % 509 for number in range(1, 30 + 20 * place)] for place in range(1, 6)]
    with opened(model, prefix_cache=False) as session:
        alone = [session.generate_sync(token_ids=prompt, **OPTIONS) for prompt in prompts]
        together = session.generate_sync(token_ids=prompts[::-1], **OPTIONS)[::-1]
    with opened(model) as session:
        cold = session.generate_sync(token_ids=prompts, **OPTIONS)
        cached = session.generate_sync(token_ids=prompts, **OPTIONS)
        # What was decoded is not found again, but computed as the prompt that it is now.
        turn = [*prompts[1], *cold[1].token_ids, 5]
        next_turn = session.generate_sync(token_ids=turn, **OPTIONS)
        session.save_sync(progress=False)
    with opened(model) as session:
        from_disk = session.generate_sync(token_ids=prompts, **OPTIONS)
        assert session.generate_sync(token_ids=turn, **OPTIONS).logprobs == next_turn.logprobs
    assert sum(answer.cached_tokens for answer in cached) > 0
    assert sum(answer.cached.disk for answer in from_disk) > 0
    for answers in (together, cold, cached, from_disk):
        assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in alone]
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]
