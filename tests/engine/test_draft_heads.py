"""Drafts by a model's own head: the tokens and log-probabilities of single steps, bit for bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.core.errors import ConfigError
from rekindle.core.scheduler.drafts.gain import Chances
from rekindle.formats.checkpoints.open import open_checkpoint
from tests.draft_heads import with_draft_head
from tests.engine.small import SMALL
from tests.unit.lora import config_of, random_parts, tensors_of
from tests.waiting import PATIENCE

OPTIONS: list[dict[str, Any]] = [
    {"logprobs": 2},
    {"temperature": 1.0, "seed": 3, "logprobs": 2, "logprobs_of": "sampled"},
    {"temperature": 0.5, "seed": 4, "top_p": 0.9, "min_p": 0.01},
    {"logit_bias": {28: 1.5}, "min_tokens": 30, "prompt_logprobs": 1},
]


@pytest.fixture(scope="module", autouse=True)
def likely() -> Iterator[None]:
    """Let each guess be verified, however rarely these heads are right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chances, "of", lambda self, match: 0.9)
        yield


@pytest.fixture(
    scope="module",
    params=[
        "glm4-moe",
        *(
            pytest.param(name, marks=pytest.mark.wide)
            for name in ("deepseek-v3", "glm4-moe-lite", "qwen3_5", "qwen3_5-moe", "qwen3-next")
        ),
    ],
)
def model(request: pytest.FixtureRequest, families: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose head is now and then right."""
    return with_draft_head(families / request.param, tmp_path_factory.mktemp("heads") / request.param, "echo")


@pytest.fixture(scope="module")
def prompts(model: Path, families: Path) -> list[list[int]]:
    ids = np.load(families / model.name / "golden.npz")["input_ids"][0].tolist()
    return [ids * 2, ids, ids[:5]]


@pytest.fixture(scope="module")
def session(model: Path) -> Iterator[rekindle.Session]:
    with rekindle.open_sync(model, progress=False, disk_cache_bytes=0, draft="mtp", **SMALL) as session:
        session.precompiled_sync(progress=False)
        yield session
        assert session.stats.unexpected_compilations == 0


def facts_of(session: rekindle.Session, prompts: list[list[int]], **options: Any) -> list[tuple[Any, ...]]:
    """Return all that a draft must not change, of requests together."""
    handles = [session.submit(token_ids=ids, max_tokens=50, ignore_eos=True, **options) for ids in prompts]
    answers = [handle.result(timeout=PATIENCE) for handle in handles]
    return [(each.token_ids, each.logprobs, each.prompt_logprobs, each.finish_reason) for each in answers]


@pytest.mark.parametrize(
    "options", [OPTIONS[0], *(pytest.param(each, marks=pytest.mark.wide) for each in OPTIONS[1:])], ids=str
)
def test_the_head_changes_no_token_and_no_log_probability(
    session: rekindle.Session, prompts: list[list[int]], options: dict[str, Any]
) -> None:
    alone = facts_of(session, prompts, draft=False, **options)
    drafts = session.stats.scheduler.drafts
    assert facts_of(session, prompts, **options) == alone
    assert session.stats.scheduler.drafts > drafts
    assert facts_of(session, prompts, draft="lookup", **options) == alone


def test_some_guesses_are_right(model: Path, session: rekindle.Session, prompts: list[list[int]]) -> None:
    if model.name == "deepseek-v3":
        pytest.skip("the head with the last layer's weights is never right for these prompts")
    before = session.stats.scheduler
    facts_of(session, prompts)
    after = session.stats.scheduler
    assert after.accepted_tokens > before.accepted_tokens
    assert after.accepted_at[1] - before.accepted_at.get(1, 0) == after.accepted_tokens - before.accepted_tokens


@pytest.mark.wide
def test_a_session_without_the_head_gives_the_same_tokens(
    model: Path, session: rekindle.Session, prompts: list[list[int]]
) -> None:
    with rekindle.open_sync(model, progress=False, disk_cache_bytes=0, **SMALL) as without:
        assert [facts[0] for facts in facts_of(without, prompts)] == [facts[0] for facts in facts_of(session, prompts)]


@pytest.mark.wide
def test_preemptions_and_chunks_change_no_token(
    model: Path, session: rekindle.Session, prompts: list[list[int]]
) -> None:
    expected = facts_of(session, prompts, draft=False)
    settings: Any = SMALL | {"num_pages": 19}
    with rekindle.open_sync(
        model, progress=False, disk_cache_bytes=0, draft="mtp", prefill_chunk=16, **settings
    ) as short:
        assert facts_of(short, prompts) == expected
        assert short.stats.scheduler.preemptions > 0
        assert short.stats.scheduler.drafts > 0


def test_new_weights_bring_their_head(
    model: Path, families: Path, session: rekindle.Session, prompts: list[list[int]]
) -> None:
    before = facts_of(session, prompts)
    session.update_weights_sync(model)
    assert facts_of(session, prompts) == before
    bare = open_checkpoint(families / model.name)
    with pytest.raises(rekindle.UnsupportedModel, match=r"needs the draft head too.*Open the session without it"):
        session.update_weights_sync(bare.source)
    with pytest.raises(rekindle.CheckpointError, match=r"missing .*norm.*without draft=\"mtp\""):
        session.update_weights_sync({name: np.asarray(tensor) for name, tensor in bare.tensors.items()})
    whole = open_checkpoint(model).with_draft_head().tensors
    session.update_weights_sync({name: np.roll(np.asarray(tensor), 1, 0) for name, tensor in whole.items()})
    other = facts_of(session, prompts)
    assert other != before
    assert facts_of(session, prompts, draft=False) == other
    session.update_weights_sync(model)
    assert facts_of(session, prompts) == before


@pytest.mark.wide
def test_a_restart_compiles_nothing_and_finds_pages_with_those_of_the_head(
    model: Path, session: rekindle.Session, prompts: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    expected = facts_of(session, prompts, draft=False)
    for is_warm in (False, True):
        with rekindle.open_sync(model, progress=False, draft="mtp", precompile="all", **SMALL) as again:
            assert facts_of(again, prompts) == expected
            assert again.stats.scheduler.drafts > 0
            again.save_sync(progress=False)
            if is_warm:
                assert again.stats.compilations == 0
                assert again.stats.scheduler.disk_hit_tokens > 0


@pytest.mark.wide
def test_looks_embeddings_and_steering_are_those_without_the_head(
    model: Path, session: rekindle.Session, prompts: list[list[int]]
) -> None:
    with rekindle.open_sync(model, progress=False, disk_cache_bytes=0, **SMALL) as without:
        sessions = (session, without)
        states = [each.embed_sync(token_ids=prompts[1]) for each in sessions]
        looks: list[Any] = [each.look_sync(token_ids=prompts[1]).residual for each in sessions]
        steering = rekindle.Steering(1, np.ones(len(states[0]), np.float32), tokens=slice(5, None))
        steered = [facts_of(each, prompts, steer=steering) for each in sessions]
    np.testing.assert_array_equal(states[0], states[1])
    np.testing.assert_array_equal(looks[0], looks[1])
    assert steered[0] == steered[1] != facts_of(session, prompts)


@pytest.mark.wide
def test_guesses_change_no_token_of_an_adapter_with_or_without_the_head(
    model: Path, session: rekindle.Session, prompts: list[list[int]]
) -> None:
    checkpoint = open_checkpoint(model)
    base = facts_of(session, prompts, draft=False)
    for place, config in enumerate((checkpoint.config, checkpoint.with_draft_head().config)):
        parts, name = random_parts(config, 3, place, scale=0.03), f"adapter {place}"
        session.add_adapter_sync(name, tensors=tensors_of(parts), config=config_of(parts))
        alone = facts_of(session, prompts, draft=False, adapter=name, logprobs=1)
        before = session.stats.scheduler.drafts
        assert facts_of(session, prompts, adapter=name, logprobs=1) == alone
        assert session.stats.scheduler.drafts > before
        assert facts_of(session, prompts) == base


def test_a_model_without_a_head_is_refused(families: Path) -> None:
    with pytest.raises(ConfigError, match="its files have no draft head that is supported"):
        rekindle.open_sync(families / "glm4-moe", progress=False, draft="mtp", **SMALL)
