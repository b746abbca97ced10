"""Whatever the cache finds of a model with states, answers have the bits of no cache: in any batch, chunks and tier."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle.core.scheduler.drafts.gain import Chances
from rekindle.settings.engine import SettingsOptions
from tests.engine.small import SMALL
from tests.waiting import PATIENCE

PAGE = 16
NEW = 20
IN_MEMORY: SettingsOptions = {"precompile": "lazy", "disk_cache_bytes": 0}
APART: SettingsOptions = {"ticks": "combined", "prefill_chunk": 16, "overlap": False, "prefix_cache": False}
FAMILIES = pytest.mark.parametrize(
    "family",
    [
        "qwen3_5",
        *(
            pytest.param(name, marks=pytest.mark.wide)
            for name in ("lfm2", "granite-hybrid", "nemotron-h-moe", "falcon-h1-norm")
        ),
    ],
    scope="module",
)
Bits = tuple[tuple[int, float], ...]


def tokens(seed: int, count: int) -> list[int]:
    """Return random token ids."""
    ids: list[int] = np.random.default_rng(seed).integers(0, 512, count).tolist()
    return ids


DOCUMENT = tokens(0, 5 * PAGE)
PROMPTS = [[*DOCUMENT, *tokens(place, count)] for place, count in enumerate((0, 1, 5, 15, 16), 1)]


def bits(answer: rekindle.Generation) -> Bits:
    """Return the tokens of an answer with their log-probabilities."""
    assert answer.logprobs is not None
    return tuple((each.token_id, each.logprob) for each in answer.logprobs)


def together(session: rekindle.Session, prompts: Sequence[list[int]]) -> list[rekindle.Generation]:
    """Return the answers to prompts, submitted at once."""
    handles = [session.submit(token_ids=ids, max_tokens=NEW, ignore_eos=True, logprobs=1) for ids in prompts]
    return [handle.result(timeout=PATIENCE) for handle in handles]


@pytest.fixture(scope="module")
def cached(family: str, families: Path) -> Iterator[rekindle.Session]:
    options: SettingsOptions = {**SMALL, **IN_MEMORY}
    with rekindle.open_sync(families / family, progress=False, **options) as session:
        yield session


@pytest.fixture(scope="module")
def plain(family: str, families: Path) -> Iterator[dict[str, Bits]]:
    """Yield the answers of a session without a cache, one by one, in chunks of another size."""
    options: SettingsOptions = {**SMALL, **IN_MEMORY, **APART}
    with rekindle.open_sync(families / family, progress=False, **options) as session:
        yield {str(prompt): bits(together(session, [prompt])[0]) for prompt in [*PROMPTS, DOCUMENT[:40]]}


@pytest.mark.wide
@FAMILIES
def test_hits_and_misses_have_the_bits_of_no_cache(cached: rekindle.Session, plain: dict[str, Bits]) -> None:
    for turn in range(2):
        answers = together(cached, PROMPTS)
        assert [bits(answer) for answer in answers] == [plain[str(prompt)] for prompt in PROMPTS]
        hits = [answer.cached_tokens for answer in answers]
        # The second arrives before the first is computed past 64 tokens, or after it.
        assert hits[1:] in ([80, 80, 80, 80], [64, 80, 80, 80])
        assert hits[0] == 64 * turn
    for prompt in PROMPTS:
        assert bits(together(cached, [prompt])[0]) == plain[str(prompt)]
    stats = cached.stats.scheduler
    assert stats.host_states > 0
    assert stats.prompt_tokens == stats.device_hit_tokens + stats.host_hit_tokens + stats.computed_tokens


@pytest.mark.wide
@FAMILIES
def test_a_branch_and_a_held_prefix_continue_from_states(cached: rekindle.Session, plain: dict[str, Bits]) -> None:
    async def ask() -> list[rekindle.Generation]:
        whole = await cached.generate(token_ids=DOCUMENT[:40], max_tokens=NEW, ignore_eos=True, logprobs=1)
        branch = await whole.branch(18, whole.token_ids[18], max_tokens=NEW, ignore_eos=True, logprobs=1)
        async with cached.prefix(token_ids=DOCUMENT[: 2 * PAGE]) as prefix:
            (fork,) = await prefix.fork(1)
            rest = DOCUMENT[2 * PAGE : 40]
            return [whole, branch, await fork.generate(token_ids=rest, max_tokens=NEW, ignore_eos=True, logprobs=1)]

    whole, branch, fork = asyncio.run(ask())
    assert bits(whole) == bits(fork) == plain[str(DOCUMENT[:40])]
    assert branch.token_ids == whole.token_ids
    assert (branch.cached_tokens, fork.cached_tokens) == (48, 32)


@pytest.mark.wide
@FAMILIES
def test_a_salt_hides_states_and_other_weights_drop_them(cached: rekindle.Session, families: Path, family: str) -> None:
    ask: dict[str, Any] = {"token_ids": DOCUMENT, "max_tokens": NEW, "ignore_eos": True}
    first, salted = cached.generate_sync(**ask), cached.generate_sync(**ask, cache_salt="another")
    assert (salted.cached_tokens, salted.token_ids) == (0, first.token_ids)
    cached.update_weights_sync(families / family)
    assert cached.stats.scheduler.host_states == 0
    again = cached.generate_sync(**ask)
    assert (again.cached_tokens, again.token_ids) == (0, first.token_ids)


@FAMILIES
def test_scores_and_embeddings_have_the_bits_of_no_cache(cached: rekindle.Session) -> None:
    first, second = (np.asarray(cached.embed_sync(token_ids=PROMPTS[3])) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.int32), second.view(np.int32))
    scores = [cached.perplexity_sync(token_ids=PROMPTS[3]) for _ in range(2)]
    assert scores[0] == scores[1]


@pytest.mark.wide
@FAMILIES
def test_states_come_back_after_a_restart_without_a_compilation(
    families: Path,
    family: str,
    plain: dict[str, Bits],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path))
    for turn, tier in enumerate(("none", "disk")):
        with rekindle.open_sync(families / family, progress=False, **SMALL, precompile="all") as session:
            (answer,) = together(session, PROMPTS[1:2])
            session.save_sync(progress=False)
            compilations = session.stats.compilations
        assert bits(answer) == plain[str(PROMPTS[1])]
        assert answer.cached.disk == (80 if turn else 0), tier
    assert compilations == 0


@pytest.mark.wide
@FAMILIES
@pytest.mark.parametrize("overlap", [True, False])
def test_drafts_have_the_bits_of_single_steps(
    families: Path, family: str, plain: dict[str, Bits], overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chances, "of", lambda self, match: 0.9)  # so each guess is verified
    options: Any = {**SMALL, "disk_cache_bytes": 0, "draft": "lookup", "overlap": overlap, "precompile": "all"}
    asks: dict[str, Any] = {"token_ids": [9, 8, 7] * 5, "max_tokens": 40, "ignore_eos": True, "logprobs": 1}
    with rekindle.open_sync(families / family, progress=False, **options) as session:
        for _ in range(2):
            answers = together(session, PROMPTS)
            assert [bits(answer) for answer in answers] == [plain[str(prompt)] for prompt in PROMPTS]
        for more in (dict[str, Any](), {"temperature": 1.0, "seed": 3, "allowed_token_ids": [7, 8, 9]}):
            alone = bits(session.generate_sync(draft=False, **asks, **more))
            assert [bits(session.generate_sync(**asks, **more)) for _ in range(2)] == [alone, alone]
        turn = [*PROMPTS[0], *(token for token, _ in plain[str(PROMPTS[0])]), 5]
        assert session.generate_sync(token_ids=turn, max_tokens=1).cached_tokens == len(turn) // PAGE * PAGE
        stats = session.stats
        assert stats.scheduler.drafted_tokens > stats.scheduler.accepted_tokens > 20
        assert stats.unexpected_compilations == 0
