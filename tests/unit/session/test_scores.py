"""Log-probabilities come from the raw logits, with exact ranks, and cost nothing unless a request asks."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.core.device.packing import unpack_score
from rekindle.core.device.sampling.scores import ScoredLogits, score, score_columns, score_if, score_prompt

Array = np.ndarray[Any, np.dtype[Any]]


@partial(jax.jit, static_argnums=2)
def scored_all(columns: jax.Array, tokens: jax.Array, most: int) -> jax.Array:
    """Score each row's token."""
    return score(ScoredLogits(columns, columns.max(0), columns), tokens, most)


def expected(logits: Array) -> Array:
    x = logits.astype(np.float64)
    p: Array = x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)
    return p


@pytest.mark.parametrize("vocabulary", [20, 128, 129, 1000])
def test_a_score_has_the_log_probability_the_rank_and_the_likeliest(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = (rng.standard_normal((5, vocabulary)) * 4 - 30).astype(np.float32)
    tokens = rng.integers(0, vocabulary, 5).astype(np.int32)
    rows = np.asarray(scored_all(jnp.asarray(logits.T), jnp.asarray(tokens), 20))
    for row, token, p in zip(rows, tokens.tolist(), expected(logits), strict=True):
        order = np.argsort(-p)
        result = unpack_score(row, token, 7)
        assert result.logprob == pytest.approx(p[token], rel=1e-5, abs=2e-6)
        assert result.rank == 1 + int(np.flatnonzero(order == token)[0])
        assert [other.token_id for other in result.top] == order[:7].tolist()
        assert [other.rank for other in result.top] == [1, 2, 3, 4, 5, 6, 7]
        np.testing.assert_allclose([other.logprob for other in result.top], p[order[:7]], rtol=1e-5, atol=2e-6)


def test_of_equal_logits_the_first_ids_come_first_and_share_the_best_rank() -> None:
    logits = jnp.zeros((300, 1), jnp.float32)
    result = unpack_score(np.asarray(scored_all(logits, jnp.asarray([250], jnp.int32), 5))[0], 250, 5)
    assert [other.token_id for other in result.top] == [0, 1, 2, 3, 4]
    assert result.rank == 1


def test_scores_are_zeros_where_nobody_wants_them() -> None:
    logits, tokens = jnp.ones((40, 3), jnp.float32), jnp.zeros(3, jnp.int32)
    scored_logits = ScoredLogits(logits, logits.max(0), logits)
    scores_if = jax.jit(lambda wanted: score_if(wanted, lambda: scored_logits, tokens, 4))
    assert not np.asarray(scores_if(jnp.zeros(3, bool))).any()
    np.testing.assert_array_equal(
        scores_if(jnp.asarray([False, True, False])), jax.jit(lambda: score(scored_logits, tokens, 4))()
    )


@pytest.mark.parametrize("tokens", [80, *(pytest.param(tokens, marks=pytest.mark.wide) for tokens in (16, 64, 200))])
def test_a_prompt_is_scored_group_by_group(tokens: int) -> None:
    """Check also a partial last group, and a whole group without targets."""
    rng = np.random.default_rng(tokens)
    hidden = rng.standard_normal((tokens, 8)).astype(np.float32)
    weight = jnp.asarray(rng.standard_normal((8, 50)).astype(np.float32))
    targets = rng.integers(0, 50, tokens).astype(np.int32)
    targets[3] = 0  # the only one of its group
    targets[:70] = np.where(np.arange(len(targets[:70])) == 3, targets[:70], -1)

    @jax.jit
    def scores_of(hidden: jax.Array, targets: jax.Array) -> jax.Array:
        return score_prompt(hidden, targets, lambda rows, adapters: (rows @ weight).T, 3)

    scores = scores_of(jnp.asarray(hidden), jnp.asarray(targets))
    assert scores.shape == (tokens, score_columns(3))
    p = expected(np.asarray(jnp.asarray(hidden) @ weight))
    for row in np.flatnonzero(targets >= 0):
        result = unpack_score(np.asarray(scores)[row], int(targets[row]), 3)
        assert result.logprob == pytest.approx(p[row, targets[row]], rel=1e-4, abs=1e-5)
        assert result.top[0].token_id == np.argmax(p[row])


def test_without_prompt_tokens_there_is_nothing_to_score() -> None:
    scores = score_prompt(jnp.zeros((0, 8)), jnp.zeros(0, jnp.int32), lambda rows, adapters: rows.T, 2)
    assert scores.shape == (0, score_columns(2))
