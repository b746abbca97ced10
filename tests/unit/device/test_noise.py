"""The noise of draws is Gumbel's, comes from the documented hash, and is independent of its neighbours'."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.core.device.sampling.sample import keys_of
from rekindle_kernels.xla.noise import gumbel, to_gumbel

Array = np.ndarray[Any, np.dtype[Any]]
VOCABULARY, ROWS = 50_000, 100
WORD = 2**32 - 1
SEED = 0x0123_4567_89AB_CDEF


@partial(jax.jit, static_argnums=3)
def _compiled(low: jax.Array, high: jax.Array, positions: jax.Array, vocabulary: int) -> jax.Array:
    return gumbel(*keys_of(low, high, positions), vocabulary)


def noise(seeds: Any, positions: Any, rows: int = ROWS, vocabulary: int = VOCABULARY) -> Array:
    """Return the noise of each row in float64, (vocabulary, rows)."""
    words = np.broadcast_to(np.asarray(seeds, np.uint64), (rows,)).astype("<u8").view("<i4").reshape(-1, 2)
    places = np.broadcast_to(np.asarray(positions, np.int32), (rows,))
    low, high, at = (jnp.asarray(np.ascontiguousarray(numbers)) for numbers in (words[:, 0], words[:, 1], places))
    return np.asarray(_compiled(low, high, at, vocabulary)).astype(np.float64)


def uniform(seeds: Any, positions: Any, rows: int = ROWS) -> Array:
    """Return the noise mapped to (0, 1) by its distribution function."""
    mapped: Array = np.exp(-np.exp(-noise(seeds, positions, rows)))
    return mapped


def mixed(word: int) -> int:
    word = (word ^ word >> 16) * 0x21F0AAAD & WORD
    word = (word ^ word >> 15) * 0xD35A2D97 & WORD
    return word ^ word >> 15


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """Compute Threefry-2x32 with 20 rounds, by the paper."""
    keys = (*key, 0x1BD11BDA ^ key[0] ^ key[1])
    x, y = (counter[0] + keys[0]) & WORD, (counter[1] + keys[1]) & WORD
    for step in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[step % 8]
        x = (x + y) & WORD
        y = (y << turn | y >> 32 - turn) & WORD ^ x
        if step % 4 == 3:
            turns = step // 4 + 1
            x, y = (x + keys[turns % 3]) & WORD, (y + keys[(turns + 1) % 3] + turns) & WORD
    return x, y


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 0), (0, 1), (SEED, 1234), (2**64 - 1, 2**31 - 1)])
def test_the_noise_is_that_of_the_documented_hash(seed: int, position: int) -> None:
    first, second = threefry((seed & WORD, seed >> 32), (position, 0))
    hashed = [mixed(mixed(token ^ first) ^ second) for token in range(200)]
    expected = [-math.log(-math.log1p(-(word + 0.5) / 2**32)) for word in hashed]
    np.testing.assert_allclose(noise(seed, position, 1, 200)[:, 0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(lambda i: (i, 5), id="over seeds"),
        pytest.param(lambda i: (i << 32, 5), id="over high words of seeds"),
        pytest.param(lambda i: (SEED, i), id="over positions"),
    ],
)
def test_it_is_gumbels(of: Callable[[Array], tuple[Any, Any]]) -> None:
    """Apply chi-square to 1000 equal bins, then count the outliers, the winners of draws."""
    values = noise(*of(np.arange(ROWS, dtype=np.uint64)))
    counts = np.histogram(np.exp(-np.exp(-values)), 1000, (0, 1))[0]
    expected = values.size / 1000
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - 999) < 5 * np.sqrt(2 * 999)
    for far in (3, 6, 9, 11):
        beyond = values.size * -math.expm1(-math.exp(-far))
        assert abs((values > far).sum() - beyond) < 5 * np.sqrt(beyond)


def correlation(one: Array, other: Array) -> float:
    """Return the correlation coefficient in standard deviations of the coefficient of independent numbers."""
    coefficient = 12 * ((one - 0.5) * (other - 0.5)).mean()
    return float(abs(coefficient) * np.sqrt(one.size))


def test_neighbouring_tokens_have_nothing_in_common() -> None:
    values = uniform(np.arange(ROWS, dtype=np.uint64), 3)
    for apart in (1, 2, 3, 4, 8, 16, 128, 1024, 4096, 32768):
        assert correlation(values[:-apart], values[apart:]) < 5
    pairs = np.histogram2d(values[:-1].ravel(), values[1:].ravel(), 16, ((0, 1), (0, 1)))[0]
    expected = pairs.sum() / 256
    assert abs(((pairs - expected) ** 2 / expected).sum() - 255) < 5 * np.sqrt(2 * 255)


def test_shifted_positions_of_one_seed_have_nothing_in_common() -> None:
    """Check also tokens shifted along with the positions, for a hash of their sum."""
    values = uniform(SEED, np.arange(ROWS))
    for later in (1, 2, 16, 64):
        for apart in (0, 1, 2, later):
            earlier, shifted = values[apart:, :-later], values[: VOCABULARY - apart, later:]
            assert correlation(earlier, shifted) < 5
            assert (earlier == shifted).mean() < 1e-5


def test_each_bit_of_a_seed_changes_all_of_its_noise() -> None:
    values = uniform(SEED, 9, 1)
    others = uniform(np.uint64(SEED) ^ (np.uint64(1) << np.arange(64, dtype=np.uint64)), 9, 64)
    assert max(correlation(values[:, 0], other) for other in others.T) < 5


def test_it_is_finite_for_the_first_and_the_last_word() -> None:
    smallest, largest = np.asarray(to_gumbel(jnp.asarray([2**32 - 1, 0], jnp.uint32)))
    assert smallest == pytest.approx(-math.log(24 * math.log(2)))
    assert largest == pytest.approx(33 * math.log(2))
