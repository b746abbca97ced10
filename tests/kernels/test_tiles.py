"""Products by tiles: their sums are those of AMX, on a machine with AMX and in the reference for all others."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from rekindle_kernels import layers
from rekindle_kernels.cpu import build, library
from tests.kernels import tile_programs
from tests.kernels.tile_programs import HEADS, attended, weight_of

pytestmark = pytest.mark.kernel

REFERENCE = "amx_reference"
here = None if library.unavailable_reason() else library.instruction_set()
by_tiles = pytest.mark.skipif(here not in build.TILES, reason="this instruction set has no tiles")


@pytest.mark.wide
@pytest.mark.skipif(here != build.BELOW_TILES, reason="the tests of this file run here, or the reference does not")
def test_the_reference_of_tiles_passes_these_tests() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not deep", __file__],
        env=os.environ | {build.CHOICE: REFERENCE}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def integers(seed: int, *shape: int) -> NDArray[np.float32]:
    """Return multiples of 2^-6 below 16 with at most 8 bits: each sum of their products is exact in float64."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-255, 256, shape) * 2.0 ** rng.integers(-6, -3, shape)).astype(np.float32)


def defined(x: NDArray[np.float32], weight: NDArray[np.float32], onto: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `onto + x @ weight.T` as tiles add it: of each 32 inputs, even ones, odd ones, both, the sum so far."""
    total = onto.astype(np.float32)
    for step in range(0, x.shape[1], 32):
        halves = []
        for half in (0, 1):
            some = np.zeros_like(total)
            for i in range(step + half, step + 32, 2):
                product = x[:, i, None].astype(np.float64) * weight[None, :, i]
                some = (some.astype(np.float64) + product).astype(np.float32)  # one rounding, as of a fused product
            halves.append(some)
        total = total + (halves[0] + halves[1])
    return total


@by_tiles
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 32, 32), (5, 70, 416), (17, 33, 64), (40, 64, 1024)])
def test_sums_are_added_in_the_order_of_tiles(rows: int, outputs: int, inputs: int) -> None:
    x, weight = integers(1, rows, inputs), integers(2, outputs, inputs)
    packed, zeros = weight_of(weight), np.zeros((rows, outputs), np.float32)
    product = layers.linear(jnp.asarray(x), packed, outputs, implementation="cpu")
    np.testing.assert_array_equal(np.asarray(product), defined(x, weight, zeros))
    columns = layers.linear_columns(jnp.asarray(x), packed, outputs, implementation="cpu")
    np.testing.assert_array_equal(np.asarray(columns), defined(x, weight, zeros).T)
    onto = integers(3, rows, outputs) * np.float32(1 / 3)
    added = layers.linear(jnp.asarray(x), packed, outputs, implementation="cpu", onto=jnp.asarray(onto))
    np.testing.assert_array_equal(np.asarray(added), onto + defined(x, weight, zeros))


@by_tiles
def test_other_orders_would_give_other_bits() -> None:
    x, weight = integers(1, 40, 1024), integers(2, 64, 1024)
    whole = np.zeros((40, 64), np.float32)
    for i in range(1024):
        whole = (whole + x[:, i, None].astype(np.float64) * weight[None, :, i]).astype(np.float32)
    assert (whole != defined(x, weight, np.zeros_like(whole))).any()


@by_tiles
def test_denormal_numbers_are_zeros() -> None:
    x, weight = np.full((3, 32), 2.0**-63, np.float32), np.full((32, 32), 2.0**-64, np.float32)
    product = layers.linear(jnp.asarray(x), weight_of(weight), 32, implementation="cpu")
    assert not np.asarray(product).any(), "each product is 2^-127, and their sum would be 2^-122"
    product = layers.linear(jnp.asarray(2 * x), weight_of(weight), 32, implementation="cpu")
    assert (np.asarray(product) == 2.0**-121).all()


@by_tiles
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (49, 64), (33, 48)])
def test_rows_among_200_have_the_bits_of_any_rows(outputs: int, inputs: int) -> None:
    rng = np.random.default_rng(0)
    weight = weight_of(rng.standard_normal((outputs, inputs), np.float32))
    x, onto = (jnp.asarray(rng.standard_normal((200, size), np.float32)) for size in (inputs, outputs))
    linear = jax.jit(lambda x, onto: layers.linear(x, weight, outputs, implementation="cpu", onto=onto))
    columns = jax.jit(lambda x: layers.linear_columns(x, weight, outputs, implementation="cpu"))
    whole, across = np.asarray(linear(x, onto)), np.asarray(columns(x))
    for rows in (1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 47, 96, 97, 130):
        for first in (0, 60):
            some = slice(first, first + rows)
            np.testing.assert_array_equal(np.asarray(linear(x[some], onto[some])), whole[some])
            np.testing.assert_array_equal(np.asarray(columns(x[some])), across[:, some])


@by_tiles
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("window", [None, 40])
def test_a_value_that_is_not_finite_changes_no_bit_of_queries_that_do_not_see_it(
    bad: float, window: int | None
) -> None:
    rng = np.random.default_rng(3)
    kv, q = rng.standard_normal((160, 2, 1, 64), np.float32), rng.standard_normal((40, HEADS, 64), np.float32)
    whole = attended(q, kv, 120, window=window)
    kv[140, 1, 0, 7] = bad
    with_bad = attended(q, kv, 120, window=window)
    np.testing.assert_array_equal(with_bad[:20], whole[:20])
    assert not np.isfinite(with_bad[20:, :, 7]).any()
    other = np.arange(64) != 7
    np.testing.assert_array_equal(with_bad[:, :, other], whole[:, :, other])
    if window is not None:
        kv[60, 1, 0, 9] = bad  # before the windows of all queries but the first
        beyond = attended(q, kv, 120, window=window)
        np.testing.assert_array_equal(beyond, with_bad)


@pytest.mark.skipif(here != "amx", reason="this machine has no AMX")
def test_the_reference_has_the_bits_of_the_hardware() -> None:
    child = [sys.executable, "-m", "tests.kernels.tile_programs"]
    done = subprocess.run(child, env=os.environ | {build.CHOICE: REFERENCE}, capture_output=True, check=True)
    assert tile_programs.digests() == json.loads(done.stdout)
