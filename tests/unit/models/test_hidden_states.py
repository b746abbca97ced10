"""The hidden states of a prompt are summed exactly once, however the work is cut up."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.device.step import sum_states
from rekindle.core.request.request import Pooling
from rekindle.testing import VOCAB_SIZE, ByHand, expected_tokens, state_of
from tests.unit.stages import Stages, shuffled

TOKEN = st.integers(0, VOCAB_SIZE - 1)
PROMPT = st.lists(TOKEN, min_size=1, max_size=60)
POOLING: st.SearchStrategy[Pooling | None] = st.sampled_from(["last", "mean", None])
CROWDED = st.fixed_dictionaries(
    {
        "page_size": st.just(16),
        "num_pages": st.integers(8, 14),
        "max_running": st.integers(1, 4),
        "prefill_chunk": st.sampled_from([16, 32, 512]),
        "ticks": st.sampled_from(["combined", "alternate", "prefill-first"]),
        "max_context": st.just(96),
        "overlap": st.booleans(),
    }
)


def expected(prompt: Sequence[int], pooling: Pooling) -> float:
    """Return the embedding of a prompt by the fake model: one number."""
    states = [state_of(position, token) for position, token in enumerate(prompt)]
    return states[-1] if pooling == "last" else math.fsum(states) / len(states)


@settings(max_examples=60)
@given(asks=st.lists(st.tuples(PROMPT, POOLING), min_size=1, max_size=8), limits=CROWDED, order=st.integers(0, 2**32))
def test_they_are_those_of_the_prompt_in_any_batch(
    asks: list[tuple[list[int], Pooling | None]], limits: dict[str, Any], order: int
) -> None:
    """Mix prompts for a state with others for tokens, and so have them compete for pages."""
    stages, choose = Stages(**limits), shuffled(order)
    handles = []
    for prompt, pooling in asks:
        handles.append(stages.ask(tuple(prompt), pooling, max_tokens=0 if pooling else 30))
        for _ in range(len(prompt)):
            stages.step(choose)
    stages.run(choose)
    for (prompt, pooling), handle in zip(asks, handles, strict=True):
        tokens = handle.result(timeout=0).token_ids
        if pooling is None:
            assert tokens == expected_tokens(prompt, min(30, 96 - len(prompt)))
        else:
            assert tokens == ()
            assert handle.record.mean_state().tolist() == pytest.approx([expected(prompt, pooling)])
    stages.assert_nothing_is_left()


@settings(max_examples=40)
@given(prompts=st.lists(PROMPT, min_size=1, max_size=5), losses=st.sets(st.integers(0, 12)), pooling=POOLING)
def test_nothing_is_summed_twice_when_the_device_state_is_lost(
    prompts: list[list[int]], losses: set[int], pooling: Pooling | None
) -> None:
    hand = ByHand(page_size=16, num_pages=9, max_running=2, prefill_chunk=16, max_context=96)
    for request_id, prompt in enumerate(prompts):
        hand.admit(request_id, prompt, 0, pooling=pooling or "mean")
    for step in range(13):
        if step in losses:
            hand.lose_device()
        if hand.in_flight:
            hand.settle()
    while hand.in_flight:
        hand.settle()
    for request_id, prompt in enumerate(prompts):
        sums = hand.states[request_id]
        assert sum(each.count for each in sums) == (1 if pooling == "last" else len(prompt))
        total = math.fsum(each.values.item() for each in sums) / sum(each.count for each in sums)
        assert total == pytest.approx(expected(prompt, pooling or "mean"))
        assert hand.ends[request_id] == "length"


def test_the_last_state_of_a_cached_prompt_takes_one_block_and_the_mean_takes_all() -> None:
    stages, prompt = Stages(page_size=16, num_pages=20), tuple(range(70))
    first = stages.ask(prompt, "last", max_tokens=0)
    stages.run()
    again, mean = stages.ask(prompt, "last", max_tokens=0), stages.ask(prompt, "mean", max_tokens=0)
    stages.run()
    assert [each.result().cached_tokens for each in (first, again, mean)] == [0, 64, 0]
    assert again.record.mean_state() == first.record.mean_state() == expected(prompt, "last")
    assert mean.record.mean_state() == pytest.approx(expected(prompt, "mean"))


def test_scores_from_a_token_on_leave_what_is_before_it_to_the_cache() -> None:
    stages, prompt = Stages(page_size=16, num_pages=20), tuple(range(1, 71))
    stages.ask(prompt, max_tokens=0)
    stages.run()
    for first, cached in ((0, 0), (1, 0), (16, 0), (17, 16), (40, 32), (64, 48), (65, 64), (69, 64)):
        handle = stages.ask(prompt, max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=first)
        stages.run()
        scores = handle.result().prompt_logprobs
        assert scores is not None
        assert len(scores) == 70
        assert [at for at, score in enumerate(scores) if score is not None] == list(range(max(1, first), 70))
        assert handle.result().cached_tokens == cached


@pytest.mark.parametrize("tokens", [16, 80])
def test_the_device_sums_ranges_and_nothing_else(tokens: int) -> None:
    """Leave garbage in the place of padding; a sum of one token equals the token, bit by bit."""
    hidden = np.random.default_rng(tokens).standard_normal((tokens, 8)).astype(np.float32)
    hidden[12:] = np.where(np.arange(12, tokens)[:, None] % 3 == 0, np.nan, hidden[12:])
    first, count = jnp.asarray([0, 5, 11, 0], jnp.int32), jnp.asarray([4, 6, 1, 0], jnp.int32)
    sums = np.asarray(jax.jit(sum_states)(jnp.asarray(hidden), first, count))
    np.testing.assert_allclose(sums[0], hidden[:4].sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums[1], hidden[5:11].sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(sums[2:], [hidden[11], np.zeros(8)])


def test_a_tick_without_prompts_has_no_sums() -> None:
    nobody = jnp.zeros(0, jnp.int32)
    assert sum_states(jnp.zeros((0, 8)), nobody, nobody).shape == (0, 8)


def test_a_sum_has_the_same_bits_at_every_place_of_every_shape() -> None:
    hidden = np.random.default_rng(0).standard_normal((1024, 384)).astype(np.float32)
    one = hidden[300:495]  # more tokens than a block of a matrix product

    def last_sum(tokens: int, first: int, chunks: int) -> Any:
        states = np.full((tokens, 384), np.nan, np.float32)
        states[first : first + len(one)] = one
        firsts, counts = np.zeros(chunks, np.int32), np.zeros(chunks, np.int32)
        firsts[-1], counts[-1] = first, len(one)
        return np.asarray(jax.jit(sum_states)(states, firsts, counts))[-1]

    alone = last_sum(256, 0, 1)
    np.testing.assert_allclose(alone, one.astype(np.float64).sum(0), rtol=0, atol=1e-4)
    for place in ((512, 100, 4), (1024, 829, 32)):
        np.testing.assert_array_equal(last_sum(*place), alone)
