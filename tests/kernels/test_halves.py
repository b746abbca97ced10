"""Products with weights of float16 are right for activations of any size."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rekindle_kernels import layers
from rekindle_kernels.api import Implementation
from rekindle_kernels.xla.halves import halves

pytestmark = pytest.mark.kernel

Array = np.ndarray[Any, np.dtype[Any]]
SIZES = np.array([1e-30, 1e-6, 1.0, 65504.0, 8e5, 1e30], np.float32)[:, None]
"""Factors of rows; the residual stream of Gemma 3 reaches 8e5."""
PORTABLE: tuple[Implementation, ...] = ("xla", "reference")


def random(*shape: int) -> Array:
    """Return normal float32 numbers, as a function of the shape alone."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def error(actual: Any, expected: Array) -> float:
    """Return the largest difference of a row, relative to the row's size."""
    differences = np.abs(np.asarray(actual, np.float64) / SIZES - expected)
    return float((differences.max(-1) / np.abs(expected).max(-1)).max())


def test_rows_are_within_the_range_and_rounded_as_float16_is() -> None:
    x = random(6, 64)
    numbers, factors = halves(jnp.asarray(x * SIZES))
    assert numbers.dtype == jnp.float16
    assert np.abs(np.asarray(numbers, np.float32)).max(-1).min() >= 2**14
    assert np.abs(np.asarray(numbers, np.float32)).max() <= 2**15
    back = np.asarray(numbers, np.float64) * np.asarray(factors, np.float64)
    np.testing.assert_allclose(back, (x * SIZES).astype(np.float64), rtol=2**-11, atol=0)
    mantissas, _ = np.frexp(np.asarray(factors))
    assert (mantissas == 0.5).all(), "powers of two are exact"


def test_zeros_stay_zeros_and_what_is_not_finite_stays_so() -> None:
    x = np.zeros((4, 8), np.float32)
    x[1, 3], x[2, 3], x[3, 3] = np.inf, np.nan, 1e-45
    numbers, factors = halves(jnp.asarray(x))
    product = np.asarray(numbers, np.float32).sum(-1) * np.asarray(factors)[:, 0]
    assert (product[0], np.isfinite(product).tolist()) == (0, [True, False, False, True])


@pytest.mark.parametrize("implementation", PORTABLE)
def test_products_are_right_for_rows_of_any_size(implementation: Implementation) -> None:
    x, weight, onto = random(6, 64), random(33, 64).astype(np.float16), random(6, 33)
    expected = x.astype(np.float64) @ weight.astype(np.float64).T
    large = jnp.asarray(x * SIZES)
    assert error(layers.linear(large, jnp.asarray(weight), 33, implementation=implementation), expected) < 1e-3
    columns = layers.linear_columns(large, jnp.asarray(weight), 33, implementation=implementation)
    assert error(columns.T, expected) < 1e-3
    added = layers.linear(
        jnp.asarray(x), jnp.asarray(weight), 33, onto=jnp.asarray(onto), implementation=implementation
    )
    np.testing.assert_allclose(added, onto + expected, atol=1e-2)


@pytest.mark.parametrize("implementation", PORTABLE)
@pytest.mark.parametrize("counted", [True, False])
def test_products_of_groups_are_right_for_rows_of_any_size(implementation: Implementation, counted: bool) -> None:
    x, weights = random(6, 64), random(2, 33, 64).astype(np.float16)
    counts = jnp.array([3, 3], jnp.int32) if counted else None
    y = layers.grouped_linear(jnp.asarray(x * SIZES), counts, jnp.asarray(weights), 33, implementation=implementation)
    assert (
        error(y, np.einsum("ri,roi->ro", x.astype(np.float64), weights.astype(np.float64)[[0, 0, 0, 1, 1, 1]])) < 1e-3
    )


@pytest.mark.parametrize("implementation", PORTABLE)
def test_adapters_are_right_for_rows_of_any_size(implementation: Implementation) -> None:
    x, first, second = random(6, 64), random(2, 4, 64).astype(np.float16), random(2, 33, 4).astype(np.float16)
    of = np.array([0, 0, 0, 1, 1, 1], np.int32)
    y = layers.low_rank(
        jnp.asarray(x * SIZES),
        jnp.asarray(of),
        jnp.asarray(first),
        jnp.asarray(second),
        (4, 33),
        implementation=implementation,
        onto=jnp.zeros((6, 33)),
    )
    inner = np.einsum("ri,rki->rk", x.astype(np.float64), first.astype(np.float64)[of])
    assert error(y, np.einsum("rk,rok->ro", inner, second.astype(np.float64)[of])) < 2e-3


def test_a_row_has_the_same_bits_beside_others() -> None:
    x = jnp.asarray(random(6, 64) * SIZES)
    numbers, factors = halves(x)
    for row in range(len(x)):
        alone = halves(x[row : row + 1])
        np.testing.assert_array_equal(alone[0], numbers[row : row + 1])
        np.testing.assert_array_equal(alone[1], factors[row : row + 1])
