"""On the device, a mask bans all tokens outside of it, in its own rows, after everything else."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.core.device.packing import GroupPart, masks_of, pack_sampling, unpack_score
from rekindle.core.device.sampling.adjustments import Adjustments
from rekindle.core.device.sampling.constraints import MASKS_PER_CALL, constrain, words_of
from rekindle.core.device.sampling.rows import ADJUSTED, CONSTRAINED, SamplingRows
from rekindle.core.device.sampling.sample import sample
from rekindle.core.messages import Row
from rekindle.core.request.constraint import regex
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request

Array = np.ndarray[Any, np.dtype[Any]]
ROWS, SLOTS = 6, 9
DRAWS, VOCABULARY = 64, 77
"""Numbers of rows and of tokens for all draws, because each shape is compiled once more."""
draw = jax.jit(partial(sample, max_logprobs=9))


def packed_bits(may: Array) -> Array:
    """Return masks (slots, vocabulary) bool as words of bits, int32."""
    padded = np.zeros((len(may), 32 * words_of(may.shape[1])), bool)
    padded[:, : may.shape[1]] = may
    return np.packbits(padded, axis=1, bitorder="little").view(np.int32)


def rows_of(requests: list[dict[str, Any]]) -> SamplingRows:
    batch = [Request(0, (1,), SamplingParams(**each), frozenset(), 99) for each in requests]
    return SamplingRows.unpack(
        jnp.asarray(np.stack([pack_sampling(each, constrained=each.params.constraint is not None) for each in batch]))
    )


@pytest.mark.parametrize("vocabulary", [31, 32, 33, 300])
def test_what_is_not_allowed_is_banned_in_constrained_rows_alone(vocabulary: int) -> None:
    chance = np.random.default_rng(vocabulary)
    columns = chance.normal(size=(vocabulary, ROWS)).astype(np.float32)
    may = chance.random((SLOTS, vocabulary)) < 0.3
    may[:, vocabulary // 2] = True
    owners = chance.permutation(SLOTS)[:ROWS].astype(np.int32)
    rows = rows_of([{"regex": regex("regex", "a")} if row % 2 else {"repetition_penalty": 2.0} for row in range(ROWS)])
    assert rows.change_bits.tolist() == [CONSTRAINED if row % 2 else ADJUSTED for row in range(ROWS)]
    out = np.asarray(jax.jit(constrain)(columns, rows, packed_bits(may), owners))
    for row in range(ROWS):
        expected = np.where(may[owners[row]], columns[:, row], -np.inf) if row % 2 else columns[:, row]
        np.testing.assert_array_equal(out[:, row], expected)


def test_a_row_of_which_nothing_would_be_left_stays_as_it_is() -> None:
    columns = np.array([[0.0, 1.0], [-np.inf, 2.0], [3.0, 4.0]], np.float32)
    may = np.array([[False, True, False], [False, False, True]])
    rows = rows_of([{"regex": regex("regex", "a")}] * 2)
    out = np.asarray(jax.jit(constrain)(columns, rows, packed_bits(may), np.arange(2, dtype=np.int32)))
    np.testing.assert_array_equal(out[:, 0], columns[:, 0])
    np.testing.assert_array_equal(out[:, 1], [-np.inf, -np.inf, 4.0])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "top_k": 3},
        pytest.param({}, marks=pytest.mark.wide),
        pytest.param({"temperature": 2.0, "top_p": 0.8}, marks=pytest.mark.wide),
    ],
)
def test_a_draw_is_from_what_is_allowed_and_scored_as_such(options: dict[str, Any]) -> None:
    chance = np.random.default_rng(3)
    logits = np.repeat(chance.normal(size=(VOCABULARY, 1)).astype(np.float32) * 2, DRAWS, axis=1)
    may = np.zeros((DRAWS, VOCABULARY), bool)
    may[:, chance.choice(VOCABULARY, 9, replace=False)] = True
    common = {"regex": regex("regex", "a"), "logprobs": 9, "logprobs_of": "sampled", **options}
    requests = [{**common, "seed": seed} for seed in range(DRAWS)]
    owners = jnp.arange(DRAWS, dtype=jnp.int32)
    positions, empty = jnp.full(DRAWS, 5, jnp.int32), Adjustments.empty(DRAWS, VOCABULARY)
    tokens, scores = draw(logits, rows_of(requests), positions, empty, owners, allowed=jnp.asarray(packed_bits(may)))
    assert may[0][np.asarray(tokens)].all()
    best = np.where(may[0], logits[:, 0], -np.inf).argmax()
    assert (len(set(np.asarray(tokens).tolist())) > 1) == bool(options)
    assert options or set(np.asarray(tokens).tolist()) == {best}
    top = np.asarray(scores)[0, 2:11]
    alternatives = np.asarray(scores)[0, 11:20].view(np.float32)
    finite = np.isfinite(alternatives)
    assert may[0][top[finite]].all()
    np.testing.assert_allclose(np.exp(alternatives[finite]).sum(), 1, rtol=1e-5)


def test_allowed_tokens_are_scored_by_the_model_beside_rows_of_other_sources() -> None:
    sources = ("allowed", "sampled", "model", "allowed") * (DRAWS // 4)
    chance = np.random.default_rng(4)
    logits = (chance.normal(size=(VOCABULARY, DRAWS)) * 3 - 40).astype(np.float32)
    may = np.zeros((DRAWS, VOCABULARY), bool)
    may[:, chance.choice(VOCABULARY, 5, replace=False)] = True
    options: dict[str, Any] = {"regex": regex("regex", "a"), "logprobs": 7, "temperature": 0.5, "seed": 1}
    rows = rows_of([{**options, "logprobs_of": source} for source in sources])
    owners, empty = jnp.arange(DRAWS, dtype=jnp.int32), Adjustments.empty(DRAWS, VOCABULARY)
    positions = jnp.full(DRAWS, 5, jnp.int32)
    tokens, scores = draw(logits, rows, positions, empty, owners, allowed=jnp.asarray(packed_bits(may)))
    for row, source in enumerate(sources):
        token, x = int(tokens[row]), logits[:, row].astype(np.float64)
        if source == "sampled":
            x = np.where(may[row], x / 0.5, -np.inf)
        p = x - np.log(np.exp(x - x.max()).sum()) - x.max()
        among = np.where(may[row], p, -np.inf) if source == "allowed" else p
        score, order = unpack_score(np.asarray(scores)[row], token, 7), np.argsort(-among)[:7]
        assert [top.token_id for top in score.top] == [each for each in order.tolist() if among[each] > -np.inf]
        np.testing.assert_allclose(
            [top.logprob for top in score.top], among[order[: len(score.top)]], rtol=1e-5, atol=4e-6
        )
        assert score.logprob == pytest.approx(p[token], rel=1e-5, abs=4e-6)
        assert score.rank == 1 + int((p > p[token]).sum())


def test_masks_are_padded_to_a_whole_call() -> None:
    bits = np.arange(3, dtype=np.int32)
    rows = [Row(slot, slot, 0, allowed=bits + slot) for slot in range(MASKS_PER_CALL + 2)]
    first, second = masks_of([GroupPart((), rows)], 99)
    assert first[0].tolist() == list(range(MASKS_PER_CALL))
    assert second[0].tolist() == [MASKS_PER_CALL, MASKS_PER_CALL + 1, *[99] * (MASKS_PER_CALL - 2)]
    np.testing.assert_array_equal(second[1][1], bits + MASKS_PER_CALL + 1)
    assert first[1].shape == second[1].shape == (MASKS_PER_CALL, 3)
