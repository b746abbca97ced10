"""Sampling over the vocabulary follows the definition in every implementation that runs here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle_kernels import sampling
from rekindle_kernels.api import Implementation, operations_of
from rekindle_kernels.penalties import END, GENERATED, IN_PROMPT, Penalties
from tests.kernels.test_layers import Array, random

pytestmark = pytest.mark.kernel

mass = jax.jit(sampling.mass, static_argnames="implementation")
argmax = jax.jit(sampling.argmax, static_argnames="implementation")
nth_largest = jax.jit(sampling.nth_largest, static_argnames="implementation")
count_above = jax.jit(sampling.count_above, static_argnames="implementation")
draw = jax.jit(sampling.draw, static_argnames="implementation")
adjust = jax.jit(sampling.adjust, static_argnames="implementation")

VOCABULARIES = st.sampled_from([1, 65, 5000])
ROWS = st.sampled_from([1, 3, 16, 37])


@settings(max_examples=10, deadline=None)
@given(VOCABULARIES, ROWS, st.booleans())
def test_a_mass_is_the_sum_of_the_powers_from_a_bound_on(
    implementation: Implementation, vocabulary: int, rows: int, nucleus: bool
) -> None:
    x = 4 * random(vocabulary, rows)
    x[1:2, 0] = -np.inf
    largest, temperature = x.max(0), 0.5 + np.abs(random(rows))
    least = np.median(x, axis=0) if nucleus else np.full(rows, -np.inf, np.float32)
    sums = mass(*map(jnp.asarray, (x, largest, temperature, least)), implementation=implementation)
    powers = np.exp((x.astype(np.float64) - largest) / temperature)
    np.testing.assert_allclose(np.asarray(sums), np.where(x >= least, powers, 0).sum(0), rtol=1e-5)


def test_a_mass_of_what_is_no_number_is_none(implementation: Implementation) -> None:
    x, one = jnp.zeros((40, 2)).at[7, 1].set(jnp.nan), jnp.ones(2)
    sums = mass(x, one, one, jnp.full(2, -jnp.inf), implementation=implementation)
    assert np.isnan(np.asarray(sums)).tolist() == [False, True]


@settings(max_examples=10, deadline=None)
@given(VOCABULARIES, ROWS)
def test_the_first_of_equal_maxima_is_taken(implementation: Implementation, vocabulary: int, rows: int) -> None:
    few = np.round(random(vocabulary, rows)).astype(np.float32)
    for x in (few, random(vocabulary, rows), np.full_like(few, -np.inf)):
        actual = argmax(jnp.asarray(x), implementation=implementation)
        np.testing.assert_array_equal(actual, x.argmax(0))


@settings(max_examples=10, deadline=None)
@given(VOCABULARIES, ROWS, st.data())
def test_what_is_not_finite_is_taken_for_the_largest(
    implementation: Implementation, vocabulary: int, rows: int, data: st.DataObject
) -> None:
    x, odd = random(vocabulary, rows), data.draw(st.sampled_from([np.nan, -np.nan, np.inf]))
    places = [data.draw(st.none() | st.integers(0, vocabulary - 1)) for _ in range(rows)]
    expected = x.argmax(0)
    for row, place in enumerate(places):
        if place is not None:
            x[place, row] = odd
            expected[row] = place
    np.testing.assert_array_equal(argmax(jnp.asarray(x), implementation=implementation), expected)


@settings(max_examples=10, deadline=None)
@given(VOCABULARIES, ROWS, st.data())
def test_large_numbers_are_found_and_counted(
    implementation: Implementation, vocabulary: int, rows: int, data: st.DataObject
) -> None:
    x = random(vocabulary, rows) - 1
    x[::3] = np.round(x[::3])
    x[:2, 0] = -np.inf
    n = np.asarray(data.draw(st.lists(st.integers(-1, vocabulary + 1), min_size=rows, max_size=rows)), np.int32)
    actual = np.asarray(nth_largest(jnp.asarray(x), jnp.asarray(n), implementation=implementation))
    ordered = -np.sort(-x, axis=0)
    expected = [ordered[m - 1, row] if 0 < m < vocabulary else -np.inf for row, m in enumerate(n)]
    np.testing.assert_array_equal(actual, expected)
    counts = count_above(jnp.asarray(x), jnp.asarray(actual), implementation=implementation)
    np.testing.assert_array_equal(counts, (x > actual).sum(0))


def test_numbers_that_are_none_are_not_among_the_largest(implementation: Implementation) -> None:
    x = jnp.asarray(random(100, 2)).at[:90, 1].set(jnp.nan)
    actual = nth_largest(x, jnp.asarray([11, 11], jnp.int32), implementation=implementation)
    assert np.asarray(actual)[1] == -np.inf < np.asarray(actual)[0]


def noise(first: Array, second: Array, vocabulary: int) -> Array:
    """Compute the noise of each token and row by its definition, in float64."""
    words: Array = np.arange(vocabulary, dtype=np.uint32)[:, None]
    for key in (first, second):
        words = words ^ key
        words = (words ^ words >> 16) * np.uint32(0x21F0AAAD)
        words = (words ^ words >> 15) * np.uint32(0xD35A2D97)
        words ^= words >> 15
    gumbel: Array = -np.log(-np.log1p(-(words + 0.5) / 2.0**32))
    return gumbel


@settings(max_examples=10, deadline=None)
@given(VOCABULARIES, ROWS, st.sampled_from(["all", "half", "one"]))
def test_a_draw_takes_the_best_sum_of_logit_and_noise(
    implementation: Implementation, vocabulary: int, rows: int, threshold: str
) -> None:
    x, rng = 3 * random(vocabulary, rows), np.random.default_rng([vocabulary, rows])
    x[1:2, 0] = -np.inf
    first, second = (rng.integers(0, 2**32, rows, dtype=np.uint32) for _ in range(2))
    largest, temperature = x.max(0), np.geomspace(1e-6, 100, rows, dtype=np.float32)
    least = {"all": np.full(rows, -np.inf, np.float32), "half": np.median(x, axis=0), "one": largest}[threshold]
    arguments = (x, (first, second), largest, temperature, least)
    tokens = np.asarray(draw(*jax.tree.map(jnp.asarray, arguments), implementation=implementation))
    scores = (x.astype(np.float64) - largest) / temperature + noise(first, second, vocabulary)
    scores = np.where(x >= least, scores, -np.inf)
    actual = scores[tokens, np.arange(rows)]
    np.testing.assert_allclose(actual, scores.max(0), atol=1e-5)


def test_draws_are_those_of_the_noise_for_all_words(implementation: Implementation) -> None:
    """Draw among tokens with equal noise but for its last bits, over the whole range of noise."""
    vocabulary, rows = 4096, 64
    rng = np.random.default_rng(0)
    first, second = (rng.integers(0, 2**32, rows, dtype=np.uint32) for _ in range(2))
    own = noise(first, second, vocabulary)
    goal = np.linspace(own.min(), own.max(), rows)
    x = (goal - own).astype(np.float32)  # so that all sums are the row's goal
    largest, ones = x.max(0), np.ones(rows, np.float32)
    arguments = (x, (first, second), largest, ones, np.full(rows, -np.inf, np.float32))
    tokens = np.asarray(draw(*jax.tree.map(jnp.asarray, arguments), implementation=implementation))
    sums = x.astype(np.float64) + own
    np.testing.assert_allclose(sums[tokens, np.arange(rows)], sums.max(0), atol=1e-5)
    assert len(set(tokens.tolist())) > rows / 2, (
        "an error of the noise that depends on the word alone would win them all"
    )


@settings(max_examples=10, deadline=None)
@given(VOCABULARIES, ROWS)
def test_logits_are_adjusted_by_what_their_slots_hold(
    implementation: Implementation, vocabulary: int, rows: int
) -> None:
    slots, rng = rows + 2, np.random.default_rng([vocabulary, rows])
    x, bias = 3 * random(vocabulary, rows), np.zeros((slots, vocabulary), np.float32)
    marks, some = np.zeros((slots, vocabulary), np.int32), rng.random((slots, vocabulary)) < 0.02
    marks[some] = rng.integers(0, 20, some.sum())
    bias[rng.random((slots, vocabulary)) < 0.02] = 1.5
    bias[0], bias[1, ::2] = -np.inf, -np.inf
    owners = rng.permutation(slots)[:rows].astype(np.int32)
    owners[::3] = -1
    weights = [rng.uniform(0.5, 2, rows).astype(np.float32) for _ in range(3)]
    too_early = np.arange(rows) % 2 == 0
    penalties = Penalties(*map(jnp.asarray, (*weights, too_early)))
    of_slots = (jnp.asarray(bias), jnp.asarray(marks), jnp.asarray(owners))
    y = adjust(jnp.asarray(x), *of_slots, penalties, implementation=implementation)
    for row, owner in enumerate(owners):
        expected, mark, (repetition, frequency, presence) = x[:, row], marks[owner], (each[row] for each in weights)
        if owner >= 0:
            expected = expected + bias[owner]
            mask = (mark & IN_PROMPT != 0) | (mark >= GENERATED)
            expected = np.where(mask, np.where(expected > 0, expected / repetition, expected * repetition), expected)
            expected = expected - frequency * (mark // GENERATED) - presence * (mark >= GENERATED)
            expected[(mark & END != 0) & too_early[row]] = -np.inf
        np.testing.assert_allclose(np.asarray(y)[:, row], expected, rtol=1e-6, atol=1e-6)


def test_rows_of_native_sampling_do_not_depend_on_the_rows_beside_them() -> None:
    if reason := operations_of("cpu").unsupported_reason((1, 2, 1, 16, 8), jnp.dtype("float32")):
        pytest.skip(reason)
    rows = 60
    x, ones = 2 * jnp.asarray(random(3000, rows)), jnp.ones(rows)
    keys = (jnp.arange(rows, dtype=jnp.uint32), jnp.arange(rows, dtype=jnp.uint32) * 7)
    arguments = (x.T, jnp.stack(keys, axis=1), x.max(0), ones, -ones)

    def computed(x: jax.Array, keys: jax.Array, *of_rows: jax.Array) -> tuple[Array, Array]:
        key = (keys[:, 0], keys[:, 1])
        masses = mass(x.T, *of_rows, implementation="cpu")
        return np.asarray(masses), np.asarray(draw(x.T, key, *of_rows, implementation="cpu"))

    whole = computed(*arguments)
    for begin, end in ((0, 1), (1, 3), (3, 14), (14, 27), (2, 59), (59, 60)):
        for part, alone in zip(whole, computed(*(each[begin:end] for each in arguments)), strict=True):
            np.testing.assert_array_equal(part[begin:end], alone)


def test_arguments_that_do_not_fit_are_refused(implementation: Implementation) -> None:
    x, six, seven = jnp.zeros((2, 7)), jnp.zeros(6), jnp.zeros(7)
    ids, words = jnp.zeros(7, jnp.int32), jnp.zeros(7, jnp.uint32)
    with pytest.raises(ValueError, match=r"logits \(2, 7\) need one number .* got \(7,\), \(7,\), \(6,\)"):
        sampling.mass(x, seven, seven, six, implementation=implementation)
    with pytest.raises(ValueError, match=r"logits \(2, 7\) need one number .* got \(6,\)"):
        sampling.nth_largest(x, ids[:6], implementation=implementation)
    with pytest.raises(ValueError, match=r"logits \(2, 7\) need one number .* got \(6,\)"):
        sampling.count_above(x, six, implementation=implementation)
    with pytest.raises(ValueError, match=r"logits \(2, 7\) need one number"):
        sampling.draw(x, (words, words), seven, seven, six, implementation=implementation)
    penalties = Penalties(seven, seven, seven, seven > 0)
    with pytest.raises(ValueError, match=r"logits \(2, 7\) need slots over their tokens, got \(3, 7\) and \(3, 7\)"):
        sampling.adjust(
            x, jnp.zeros((3, 7)), jnp.zeros((3, 7), jnp.int32), ids, penalties, implementation=implementation
        )
