"""A row's draw follows the exact distribution of its own parameters, whatever else is in the batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.sampling import SamplingRows, first_of_the_largest, sample

Array = np.ndarray[Any, np.dtype[Any]]
DRAWS = 20_000
CASES: list[dict[str, float]] = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.3},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.8, "min_p": 0.05},
]


def rows_of(*rows: dict[str, float]) -> SamplingRows:
    def column(name: str, default: float, dtype: Any) -> jax.Array:
        return jnp.asarray([row.get(name, default) for row in rows], dtype)

    return SamplingRows(
        temperature=column("temperature", 0.0, jnp.float32),
        top_k=column("top_k", 0, jnp.int32),
        top_p=column("top_p", 1.0, jnp.float32),
        min_p=column("min_p", 0.0, jnp.float32),
        seed=column("seed", 0, jnp.int32),
    )


def exact(logits: Array, row: dict[str, float]) -> Array:
    """The distribution by definition, with a sort: temperature, top-k, top-p, min-p, in this order."""
    scaled = logits.astype(np.float64) / row["temperature"]
    p = np.exp(scaled - scaled.max())
    order = np.argsort(-p)
    if top_k := int(row.get("top_k", 0)):
        p[order[top_k:]] = 0
    p /= p.sum()
    ahead = np.cumsum(p[order]) - p[order]
    p[order[ahead >= row.get("top_p", 1.0)]] = 0
    p[p < row.get("min_p", 0.0) * p.max()] = 0
    distribution: Array = p / p.sum()
    return distribution


@pytest.mark.parametrize("row", CASES)
@pytest.mark.parametrize("vocabulary", [11, 300])
def test_draws_follow_the_exact_distribution(row: dict[str, float], vocabulary: int) -> None:
    """Pearson's chi-square at 1e-6; the statistic is approximated as normal (Wilson and Hilferty, 1931)."""
    logits = np.random.default_rng(1).standard_normal(vocabulary).astype(np.float32) * 2 - 5
    p = exact(logits, row)
    batch = jnp.broadcast_to(jnp.asarray(logits), (DRAWS, vocabulary))
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (DRAWS,)), rows_of(row))
    tokens = np.asarray(jax.jit(sample)(batch, rows, jnp.arange(DRAWS, dtype=jnp.int32)))
    counts = np.bincount(tokens, minlength=vocabulary)
    assert counts[p == 0].sum() == 0, "a token was drawn that the parameters exclude"
    kept = p * DRAWS >= 5
    statistic = ((counts - p * DRAWS)[kept] ** 2 / (p * DRAWS)[kept]).sum()
    freedom = max(1, int(kept.sum()) - 1)
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom))
    assert z < 4.9


def test_min_p_is_relative_to_the_largest_probability_for_negative_logits() -> None:
    """PEERS.md 3: thresholding logits would sample these four uniformly."""
    logits = jnp.broadcast_to(jnp.asarray([-1.0, -2.0, -3.0, -9.0]), (DRAWS, 4))
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x, (DRAWS,)), rows_of({"temperature": 1.0, "min_p": 0.3}))
    tokens = np.asarray(sample(logits, rows, jnp.arange(DRAWS, dtype=jnp.int32)))
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / DRAWS, [0.731, 0.269, 0, 0], atol=0.02)


def test_a_greedy_row_beside_sampled_rows_takes_the_largest() -> None:
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((3, 50)), jnp.float32)
    rows = rows_of({}, {"temperature": 2.0, "seed": 4}, {})
    tokens = np.asarray(sample(logits, rows, jnp.asarray([3, 4, 5], jnp.int32)))
    assert tokens[0] == np.argmax(logits[0])
    assert tokens[2] == np.argmax(logits[2])


def test_a_draw_depends_on_its_seed_and_position_alone() -> None:
    """Not on the row's index, its neighbours, or the size of the batch."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.standard_normal((1, 400)), jnp.float32)
    row = {"temperature": 1.3, "top_p": 0.9, "seed": 77}
    draw = jax.jit(sample)
    alone = [int(draw(logits, rows_of(row), jnp.asarray([at], jnp.int32))[0]) for at in range(20)]
    strangers = [{"temperature": 0.7, "top_k": 3, "seed": 5}, {}, {"temperature": 2.0, "min_p": 0.2, "seed": 77}]
    for place in range(4):
        others = jnp.asarray(rng.standard_normal((3, 400)), jnp.float32)
        batch = jnp.concatenate([others[:place], logits, others[place:]])
        rows = rows_of(*strangers[:place], row, *strangers[place:])
        positions = np.arange(100, 104, dtype=np.int32)
        for at in range(20):
            positions[place] = at
            assert int(draw(batch, rows, jnp.asarray(positions))[place]) == alone[at]
    assert len(set(alone)) > 5, "positions draw differently"


def test_top_k_of_one_and_a_tiny_top_p_are_greedy() -> None:
    logits = jnp.asarray(np.random.default_rng(3).standard_normal((2, 300)), jnp.float32)
    rows = rows_of({"temperature": 5.0, "top_k": 1}, {"temperature": 5.0, "top_p": 1e-6})
    np.testing.assert_array_equal(sample(logits, rows, jnp.zeros(2, jnp.int32)), np.argmax(logits, -1))


def test_the_first_of_equal_maxima_is_taken() -> None:
    values = jnp.asarray([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 1.0, 5.0]])
    np.testing.assert_array_equal(first_of_the_largest(values), [1, 0, 2])
