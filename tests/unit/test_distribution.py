"""Log-probabilities of the distribution that a token is drawn from are exact, for any mix of rows."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.core.device.packing import unpack_score
from rekindle.core.device.sampling.distribution import sampling_logits
from rekindle.core.device.sampling.rows import SamplingRows
from rekindle.core.device.sampling.sample import sample
from rekindle.core.errors import ParametersIgnored
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import TokenLogprob
from tests.unit.sampling_batches import (
    BOUNDS,
    CASES,
    HOT,
    OPTIONS,
    OUTPUT,
    PROMPT,
    batch_of,
    bounded_logits,
    request_of,
)
from tests.unit.sampling_reference import adjusted_logits, distribution

Array = np.ndarray[Any, np.dtype[Any]]
MOST = 8
ROWS = 5 * len(CASES)
POSITION = len(PROMPT) + len(OUTPUT)
SCORED: dict[str, Any] = {"logprobs": MOST, "logprobs_of": "sampled"}

_sampling_logits = jax.jit(sampling_logits)
_sample = jax.jit(partial(sample, max_logprobs=MOST))


def scores_of(logits: Array, requests: Sequence[Request]) -> list[TokenLogprob]:
    """Draw and score a token for each row, (rows, vocabulary), beside others, so that all calls have one shape."""
    made = (jnp.asarray(logits), *batch_of(requests, [OUTPUT] * len(requests), logits.shape[1]))
    rows, packed, slots = jax.tree.map(lambda x: jnp.concatenate([x, jnp.repeat(x[:1], ROWS - len(x), 0)]), made)
    owners, positions = jnp.arange(ROWS, dtype=jnp.int32), jnp.full(ROWS, POSITION, jnp.int32)
    tokens, scores = _sample(rows.T, SamplingRows.unpack(packed), positions, slots, owners)
    found = zip(np.asarray(scores), np.asarray(tokens), strict=True)
    return [unpack_score(row, int(token), MOST) for row, token in islice(found, len(logits))]


def assert_scored(scored: TokenLogprob, probabilities: Array) -> None:
    """Compare with the exact probabilities of all tokens."""
    order = np.argsort(-probabilities, kind="stable")
    assert scored.logprob == pytest.approx(np.log(probabilities[scored.token_id]), rel=1e-4, abs=1e-4)
    assert scored.rank == 1 + (probabilities > probabilities[scored.token_id]).sum()
    best = order[: min(MOST, (probabilities > 0).sum())]
    assert [other.token_id for other in scored.top] == best.tolist()
    np.testing.assert_allclose(
        [other.logprob for other in scored.top], np.log(probabilities[best]), rtol=1e-4, atol=1e-4
    )


def softmax(logits: Array) -> Array:
    mass = np.exp(logits - logits.max())
    whole: Array = mass / mass.sum()
    return whole


@pytest.mark.parametrize("vocabulary", [11, pytest.param(300, marks=pytest.mark.wide)])
def test_they_are_those_of_the_distribution_drawn_from(vocabulary: int) -> None:
    """Check all cases in one batch, each with several seeds."""
    requests = [request_of(case | SCORED | {"seed": seed}) for case in CASES for seed in range(5)]
    logits = np.random.default_rng(1).standard_normal((len(requests), vocabulary)).astype(np.float32) * 2 - 5
    for row, request, scored in zip(logits, requests, scores_of(logits, requests), strict=True):
        assert_scored(scored, distribution(row, request, OUTPUT))


def test_greedy_rows_have_those_of_the_logits_after_the_adjustments() -> None:
    """Check that filters, which do nothing at temperature 0, take nothing away."""
    filters: dict[str, Any] = {"temperature": 0, "top_k": 2, "top_p": 0.1, "min_p": 0.9}
    adjusting: dict[str, Any] = {"repetition_penalty": 1.5, "logit_bias": {4: 2.0, 7: float("-inf")}}
    with pytest.warns(ParametersIgnored):
        requests = [request_of(SCORED | filters), request_of(SCORED | filters | adjusting)]
    logits = np.random.default_rng(2).standard_normal((2, 300)).astype(np.float32) * 3
    for row, request, scored in zip(logits, requests, scores_of(logits, requests), strict=True):
        assert_scored(scored, softmax(adjusted_logits(row, request, OUTPUT)))
        assert scored.rank == 1


def test_neighbours_that_want_the_models_own_have_them() -> None:
    hot: dict[str, Any] = {**HOT, "top_k": 3, "repetition_penalty": 1.3, "seed": 1}
    ways: list[dict[str, Any]] = [SCORED, {"logprobs": MOST}, SCORED, {}]
    requests = [request_of(hot | way) for way in ways]
    logits = np.random.default_rng(3).standard_normal((4, 300)).astype(np.float32)
    first, own, third, _ = scores_of(logits, requests)
    assert_scored(first, distribution(logits[0], requests[0], OUTPUT))
    assert_scored(own, softmax(logits[1].astype(np.float64)))
    assert_scored(third, distribution(logits[2], requests[2], OUTPUT))


def test_fewer_kept_tokens_than_alternatives_asked_for_give_fewer() -> None:
    few = request_of(HOT | SCORED | {"top_k": 3, "bad_words": [[0]]})
    forced = request_of(SCORED | {"allowed_token_ids": [5]})
    logits = np.random.default_rng(4).standard_normal((2, 300)).astype(np.float32)
    three, one = scores_of(logits, [few, forced])
    assert len(three.top) == 3
    assert 0 not in {other.token_id for other in three.top}
    assert np.exp([other.logprob for other in three.top]).sum() == pytest.approx(1)
    assert (one.token_id, one.logprob, one.rank) == (5, 0.0, 1)
    assert [(other.token_id, other.logprob) for other in one.top] == [(5, 0.0)]


def test_at_a_bound_the_tokens_are_kept_that_are_drawn() -> None:
    packed, _ = batch_of([request_of(HOT | SCORED | options) for _, options, _ in BOUNDS], [()] * len(BOUNDS), 11)
    columns = jnp.asarray(np.stack([bounded_logits(logits) for logits, _, _ in BOUNDS], axis=1))
    best = jnp.zeros(len(BOUNDS), jnp.int32)
    found = jax.jit(sampling_logits)(columns, columns.max(0), SamplingRows.unpack(packed), best)
    assert [np.flatnonzero(row > -50).tolist() for row in np.asarray(found.T)] == [
        list(range(kept)) for _, _, kept in BOUNDS
    ]


@settings(max_examples=15)
@given(st.lists(OPTIONS, min_size=20, max_size=20), st.integers(0, 99))
def test_the_tokens_that_may_be_drawn_are_the_references_for_any_mix(mixes: list[dict[str, Any]], shape: int) -> None:
    """Compare sets, so that one that is too small fails too; tokens right at an edge may be in float32 or not."""
    requests = [request_of(mix | {"temperature": mix.get("temperature") or 1.7}) for mix in mixes]
    rng = np.random.default_rng(shape)
    logits = rng.standard_normal((20, 60)).astype(np.float32) * rng.uniform(0.1, 4)
    columns = np.stack([adjusted_logits(*row, OUTPUT) for row in zip(logits, requests, strict=True)], 1)
    packed, _ = batch_of(requests, [OUTPUT] * 20, 60)
    best, on_device = jnp.asarray(columns.argmax(0), jnp.int32), jnp.asarray(columns, jnp.float32)
    found = np.isfinite(_sampling_logits(on_device, on_device.max(0), SamplingRows.unpack(packed), best).T)
    for row, request, drawable in zip(logits, requests, found, strict=True):
        params = request.params
        wider = replace(params, top_p=min(1.0, params.top_p + 1e-5), min_p=max(0.0, params.min_p - 1e-5))
        closer = replace(params, top_p=max(1e-6, params.top_p - 1e-5), min_p=min(1.0, params.min_p + 1e-5))
        if params.top_p == 1:
            closer = replace(closer, top_p=1.0)
        if params.min_p == 0:
            closer = replace(closer, min_p=0.0)
        most, least = (distribution(row, replace(request, params=each), OUTPUT) > 0 for each in (wider, closer))
        assert (drawable <= most).all(), params
        assert (drawable >= least).all(), params


def test_the_drawn_token_is_kept_whatever_rounding_says_of_a_bound() -> None:
    request = request_of(HOT | SCORED | {"top_p": 0.5, "min_p": 0.5})
    packed, _ = batch_of([request], [OUTPUT], 5)
    columns = jnp.asarray([[0.0], [-3.0], [-5.0], [-1.0], [-9.0]])
    kept = sampling_logits(columns, columns.max(0), SamplingRows.unpack(packed), jnp.asarray([1], jnp.int32))
    np.testing.assert_array_equal(kept.T, [[0.0, -3.0, -np.inf, -1.0, -np.inf]])
