"""On a real model, a request's tokens are a function of the request alone, and its end is exact."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rekindle
from rekindle.core.buckets import MAX_STEPS
from tests.engine.sampled import MIXED, SEEDED
from tests.engine.small import SMALL
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def session(families: Path) -> Iterator[rekindle.Session]:
    """Open a session with room in its pool for any request, and two buckets of each kind, which must agree."""
    with rekindle.open_sync(
        families / "qwen3",
        progress=False,
        max_running=8,
        max_prefill_tokens=128,
        prefill_buckets=(16, 128),
        decode_buckets=(1, 8),
    ) as session:
        yield session


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, 512, length).tolist() for length in (1, 15, 16, 17, 63, 64, 65, 130, 200, 31, 90, 5)]


@pytest.mark.wide
@pytest.mark.parametrize("sampling", [{}, SEEDED, MIXED], ids=["greedy", "seeded", "all of it"])
def test_tokens_are_the_same_alone_and_beside_others(
    session: rekindle.Session, prompts: list[list[int]], sampling: dict[str, Any]
) -> None:
    alone = [session.generate_sync(token_ids=p, max_tokens=20, ignore_eos=True, **sampling) for p in prompts]
    together = session.generate_sync(token_ids=prompts, max_tokens=20, ignore_eos=True, **sampling)
    strangers = [session.submit(token_ids=p, max_tokens=50, temperature=1.5, ignore_eos=True) for p in prompts[::-1]]
    among = [session.generate_sync(token_ids=p, max_tokens=20, ignore_eos=True, **sampling) for p in prompts]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]
    assert [g.token_ids for g in among] == [g.token_ids for g in alone]
    for stranger in strangers:
        assert len(stranger.result(timeout=PATIENCE).token_ids) == 50


def test_an_unseeded_request_draws_afresh(session: rekindle.Session) -> None:
    answers = {session.generate_sync(token_ids=[9, 8, 7], max_tokens=12, temperature=1.5).token_ids for _ in range(4)}
    assert len(answers) > 1


def test_log_probabilities_are_of_the_model_or_of_what_was_drawn_from(session: rekindle.Session) -> None:
    """Check a draw from one token, which is certain, and a draw without the model's first choice."""
    request: dict[str, Any] = {"token_ids": [9, 8, 7], "max_tokens": 1, "temperature": 1.0, "seed": 3, "logprobs": 5}
    sampled: dict[str, Any] = {**request, "logprobs_of": "sampled"}

    def score(**options: Any) -> rekindle.TokenLogprob:
        generation = session.generate_sync(**options, top_k=1)
        scores: tuple[rekindle.TokenLogprob, ...] = generation.logprobs
        return scores[0]

    own, certain = score(**request), score(**sampled)
    assert [other.rank for other in own.top] == [1, 2, 3, 4, 5]
    assert own.logprob < 0.0 == certain.logprob
    assert [other.token_id for other in certain.top] == [certain.token_id] == [own.token_id]
    second = score(**sampled, logit_bias={own.token_id: -math.inf})
    assert (second.token_id, second.logprob, second.rank) == (own.top[1].token_id, 0.0, 1)


def test_max_tokens_is_exact(session: rekindle.Session) -> None:
    """Check this because another engine returned 40 tokens where 32 were asked for."""
    for tokens in (1, 2, 15, 16, 17, 33):
        generation = session.generate_sync(token_ids=[4, 5, 6], max_tokens=tokens, ignore_eos=True)
        assert len(generation.token_ids) == tokens
        assert generation.finish_reason == "length"


def test_a_stop_token_ends_at_once_and_is_the_last(session: rekindle.Session) -> None:
    """Check also the very first token, and with ignore_eos, where other engines went on."""
    free = session.generate_sync(token_ids=[4, 5, 6], max_tokens=20, ignore_eos=True).token_ids
    for at in (0, 1, 7):
        stop = free[at]
        generation = session.generate_sync(token_ids=[4, 5, 6], max_tokens=20, ignore_eos=True, stop_token_ids=[stop])
        assert generation.token_ids == free[: free.index(stop) + 1]
        assert generation.finish_reason == "stop"


def test_the_models_end_tokens_end_unless_ignored(session: rekindle.Session, families: Path) -> None:
    """Check also a stop id equal to the goldens' eos, 2: it still ends the request with ignore_eos."""
    hot: dict[str, Any] = {"max_tokens": 30, "temperature": 20.0, "seed": 1}
    prompts: list[list[int]] = np.random.default_rng(0).integers(0, 512, (400, 8)).tolist()
    for seed, prompt in enumerate(prompts):
        hot["seed"] = seed
        free = session.generate_sync(token_ids=prompt, ignore_eos=True, **hot).token_ids
        if 2 in free[:-1]:
            break
    expected = free[: free.index(2) + 1]
    ended = session.generate_sync(token_ids=prompt, **hot)
    assert (ended.token_ids, ended.finish_reason) == (expected, "stop")
    stopped = session.generate_sync(token_ids=prompt, ignore_eos=True, stop_token_ids=[2], **hot)
    assert stopped.token_ids == expected


def test_the_context_is_the_last_limit(session: rekindle.Session) -> None:
    generation = session.generate_sync(token_ids=[7] * 500, max_tokens=100, ignore_eos=True)
    assert len(generation.token_ids) == 12
    assert generation.finish_reason == "length"
    with pytest.raises(rekindle.PromptTooLong, match="512 tokens; at most 511"):
        session.generate_sync(token_ids=[7] * 512, max_tokens=1)
    with pytest.raises(rekindle.PromptTooLong):
        session.submit(token_ids=[7] * 512)


def test_token_id_0_is_a_token_like_any_other(session: rekindle.Session) -> None:
    """Check this because another engine took it for padding."""
    zeros = session.generate_sync(token_ids=[0, 0, 0, 5], max_tokens=8, ignore_eos=True)
    assert zeros.usage.prompt_tokens == 4
    assert zeros.token_ids != session.generate_sync(token_ids=[5], max_tokens=8, ignore_eos=True).token_ids


@pytest.mark.parametrize("token", [-1, 512, 513, 2**31])
def test_token_ids_outside_the_vocabulary_are_rejected(session: rekindle.Session, token: int) -> None:
    """Check also the vocabulary size itself: another engine let it pass."""
    with pytest.raises(rekindle.InvalidRequest, match="from 0 to 511"):
        session.generate_sync(token_ids=[1, token])


def test_streamed_pieces_are_the_generation(session: rekindle.Session) -> None:
    """Check pieces of at most the tokens of a tick; another engine's tokens came in lumps."""
    whole = session.generate_sync(token_ids=[3, 1, 4], max_tokens=25, ignore_eos=True)
    pieces = list(session.stream_sync(token_ids=[3, 1, 4], max_tokens=25, ignore_eos=True))
    assert tuple(token for piece in pieces for token in piece.token_ids) == whole.token_ids
    assert {len(piece.token_ids) for piece in pieces} <= set(range(1, MAX_STEPS + 1))


def test_cancelling_frees_that_request_and_no_other(session: rekindle.Session) -> None:
    """Check this because another engine compared only the beginnings of ids, and cancelled other requests too."""
    session.pause_sync()  # or a request might end before it is cancelled
    handles = [session.submit(token_ids=[i + 1], max_tokens=60, ignore_eos=True) for i in range(12)]
    handles[1].cancel()
    handles[1].cancel()
    session.resume()
    with pytest.raises(rekindle.RequestCancelled):
        handles[1].result(timeout=PATIENCE)
    for handle in handles[:1] + handles[2:]:
        assert len(handle.result(timeout=PATIENCE).token_ids) == 60
    assert session.stats.scheduler.free_pages == session.stats.scheduler.pages


def test_two_sessions_in_one_process_do_not_disturb_each_other(session: rekindle.Session, families: Path) -> None:
    golden = np.load(families / "llama-tied" / "golden.npz")
    before = session.generate_sync(token_ids=[1, 2, 3], max_tokens=10).token_ids
    with rekindle.open_sync(families / "llama-tied", progress=False, precompile="lazy", **SMALL) as other:
        generation = other.generate_sync(token_ids=golden["greedy_prompt"].tolist(), max_tokens=24, ignore_eos=True)
        assert session.generate_sync(token_ids=[1, 2, 3], max_tokens=10).token_ids == before
    assert generation.token_ids == tuple(golden["greedy_new"].tolist())
    assert session.generate_sync(token_ids=[1, 2, 3], max_tokens=10).token_ids == before


def test_close_frees_the_device_memory_and_is_idempotent(families: Path) -> None:
    before = {id(array) for array in jax.live_arrays()}

    def live_bytes() -> int:
        return sum(a.nbytes for a in jax.live_arrays() if id(a) not in before and not a.is_deleted())

    session = rekindle.open_sync(families / "llama-tied", progress=False, precompile="lazy", **SMALL)
    session.generate_sync(token_ids=[1, 2], max_tokens=3)
    open_bytes = live_bytes()
    session.pause_sync()  # or the request might end before the session is closed
    running = session.submit(token_ids=[1, 2], max_tokens=200, ignore_eos=True)
    while not running.record.pieces.items:
        session.step_sync()
    session.close_sync()
    session.close_sync()
    with pytest.raises(rekindle.SessionClosed):
        running.result(timeout=PATIENCE)
    with pytest.raises(rekindle.SessionClosed, match="open another"):
        session.generate_sync(token_ids=[1, 2])
    # The outputs of the last tick may still be with the thread that waits for them.
    assert live_bytes() < open_bytes / 50, "weights, pages and slots are gone"
    assert "closed" in repr(session)
