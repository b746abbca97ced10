"""A deterministic session gives a request the same tokens, to the last bit, whatever else runs or is cached."""

from functools import partial
from pathlib import Path
from typing import Any, Unpack

import jax.numpy as jnp
import pytest

import rekindle
from rekindle.core.policy import DraftSource
from rekindle.core.scheduler.drafts.gain import Chances
from rekindle.settings.engine import Dtype, SettingsOptions
from rekindle_kernels.api import Implementation, operations_of
from rekindle_kernels.cpu.library import unavailable_reason
from tests.draft_heads import with_draft_head

pytestmark = pytest.mark.wide

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


@pytest.fixture(params=["xla", "cpu"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """Return each implementation that serves here: one shape makes the first deterministic, its sums the second."""
    named: Implementation = request.param
    if reason := operations_of(named).unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("bfloat16")):
        pytest.skip(reason)
    return named


def test_answers_are_the_same_to_the_last_bit_in_any_batch_and_from_any_tier(
    model: Path, implementation: Implementation
) -> None:
    prompts = [[(place * number) % 509 for number in range(1, 30 + 20 * place)] for place in range(1, 6)]
    opened_with = partial(opened, model, implementation=implementation)
    with opened_with(prefix_cache=False) as session:
        alone = [session.generate_sync(token_ids=prompt, **OPTIONS) for prompt in prompts]
        together = session.generate_sync(token_ids=prompts[::-1], **OPTIONS)[::-1]
    with opened_with() as session:
        cold = session.generate_sync(token_ids=prompts, **OPTIONS)
        cached = session.generate_sync(token_ids=prompts, **OPTIONS)
        turn = [*prompts[1], *cold[1].token_ids, 5]
        next_turn = session.generate_sync(token_ids=turn, **OPTIONS)
        session.save_sync(progress=False)
    with opened_with() as session:
        from_disk = session.generate_sync(token_ids=prompts, **OPTIONS)
        assert session.generate_sync(token_ids=turn, **OPTIONS).logprobs == next_turn.logprobs
    assert sum(answer.cached_tokens for answer in cached) > 0
    assert sum(answer.cached.disk for answer in from_disk) > 0
    for answers in (together, cold, cached, from_disk):
        assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in alone]
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]


@pytest.mark.parametrize("draft", ["lookup", "mtp"])
def test_drafts_change_no_bit_in_any_batch(
    families: Path, tmp_path: Path, implementation: Implementation, draft: DraftSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chances, "of", lambda self, match: 0.9)  # so each guess is verified
    model = with_draft_head(families / "glm4-moe", tmp_path / "model", "echo")
    prompts = [[5, 9, 7] * (4 * place) for place in range(1, 5)]
    options = OPTIONS | {"allowed_token_ids": [5, 7, 9]}  # so that some guesses are right
    settings: Any = {"precompile": "all", "disk_cache_bytes": 0, "implementation": implementation}
    with opened(model, **settings) as session:
        plain = session.generate_sync(token_ids=prompts, **options)
    with opened(model, **settings | {"draft": draft}) as session:
        alone = [session.generate_sync(token_ids=prompt, **options) for prompt in prompts]
        together = session.generate_sync(token_ids=prompts, **options)
        without = session.generate_sync(token_ids=prompts, draft=False, **options)
        stats = session.stats
    for answers in (alone, together, without):
        assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in plain]
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    assert stats.scheduler.drafts > 0
    assert draft == "mtp" or stats.scheduler.accepted_tokens > 0
    assert stats.unexpected_compilations == 0


@pytest.mark.skipif(unavailable_reason() is not None, reason=f"no native kernels: {unavailable_reason()}")
@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen2", "float32"), pytest.param("qwen3", "bfloat16", marks=pytest.mark.deep)]
)
def test_native_kernels_keep_rows_apart_without_one_shape(families: Path, family: str, dtype: Dtype) -> None:
    """Check all that sums over the vocabulary too, in buckets of all sizes, with chunks and pages of other sizes."""
    kinds: list[dict[str, Any]] = [
        {"top_p": 0.6},
        {"top_k": 40, "min_p": 0.01, "logprobs_of": "sampled"},
        {"top_p": 0.8, "logprobs_of": "sampled"},
        {"repetition_penalty": 1.2},
        {"prompt_logprobs": 1},
    ]
    prompts = [[(7 * place * number) % 251 for number in range(1, 20 + 21 * place)] for place in range(len(kinds))]
    requests = [
        OPTIONS | kind | {"token_ids": prompt, "seed": place}
        for place, (kind, prompt) in enumerate(zip(kinds, prompts, strict=True))
    ]
    opened_with = partial(opened, families / family, implementation="cpu", dtype=dtype)
    with opened_with(prefix_cache=False) as session:
        assert session.settings.deterministic
        alone = [session.generate_sync(**each) for each in requests]
    with opened_with(page_size=32, prefill_chunk=16, restore="off") as session:
        for _ in range(2):
            begun = [session.submit(**each) for each in requests]
            together = [each.result() for each in begun]
            assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
            assert [answer.logprobs for answer in together] == [answer.logprobs for answer in alone]
            assert together[-1].prompt_logprobs == alone[-1].prompt_logprobs
        turn = [*prompts[0], *alone[0].token_ids, 5]
        cached = session.generate_sync(token_ids=turn, **OPTIONS)
        assert cached.cached_tokens >= len(prompts[0]), "what was decoded is found too"
    with opened_with(disk_cache_bytes=0) as session:
        assert session.generate_sync(token_ids=turn, **OPTIONS).logprobs == cached.logprobs
