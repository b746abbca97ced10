"""Measure products with codes of weights on a GPU or TPU against bfloat16, after a check of their numbers.

`python -m tests.bench.narrow` needs jax alone, and a GPU or TPU; with `--tiny`, small matrices on any machine.
"""

import argparse
from statistics import median
from time import perf_counter
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels import layers
from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array
from rekindle_kernels.encode import encode
from rekindle_kernels.storage import Storage, Stored, Weight
from tests.bench.say import say

NAMES: Final = ("bfloat16", "int8:row", "int8:128", "int4:row", "int4:128")
ROUNDS: Final = 7
LIMITS: Final = {True: 1e-4, False: 1e-2}
"""The largest difference by the largest product, for few rows, and for many, where numbers may be in bfloat16."""


def weight_of(numbers: Array, name: str, implementation: Implementation) -> tuple[Weight, Array]:
    """Return a matrix in the form of a dtype or of a kind, and its rounded numbers."""
    if name == "bfloat16":
        weight = jnp.asarray(numbers, jnp.bfloat16)
        return weight, np.asarray(weight.astype(jnp.float32))
    kind = name.replace("row", str(numbers.shape[1]))
    storage = Storage(((kind, len(numbers)),), "bfloat16")
    form = layers.packed(numbers.shape, storage, implementation=implementation)
    into = jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), form)
    layers.pack_blocks([encode(numbers, kind)], into, storage, numbers.shape[1], implementation=implementation)
    packed = Stored(jax.tree.map(jnp.asarray, into), storage)
    rows = jnp.arange(len(numbers), dtype=jnp.int32)
    return packed, np.asarray(layers.look_up(packed, rows, numbers.shape, implementation=implementation))


def seconds(weights: list[Weight], x: jax.Array, outputs: int, implementation: Implementation) -> float:
    """Return the median seconds of a product, each with another weight, so that no cache holds all weights."""

    @jax.jit
    def products(x: jax.Array, weights: list[Weight]) -> jax.Array:
        sums = jnp.zeros((), jnp.float32)
        for weight in weights:  # each waits for the one before it
            y = layers.linear(x + sums, weight, outputs, implementation=implementation)
            sums = y[0, 0] * 1e-30
        return sums

    jax.block_until_ready(products(x, weights))
    times = []
    for _ in range(ROUNDS):
        started = perf_counter()
        jax.block_until_ready(products(x, weights))
        times.append(perf_counter() - started)
    return median(times) / len(weights)


def main() -> None:
    """Check and measure each form for several numbers of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small matrices")
    shape, count = ((64, 256), 2) if parser.parse_args().tiny else ((8192, 4096), 12)
    platform = jax.default_backend()
    implementation: Implementation = "tpu" if platform == "tpu" else "gpu"
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(shape).astype(np.float32)
    say(f"{jax.devices()[0].device_kind}, {shape[0]}x{shape[1]}; microseconds of a product, and its largest error")
    for name in NAMES:
        weight, rounded = weight_of(numbers, name, implementation)
        weights = [jax.tree.map(lambda each: each.copy(), weight) for _ in range(count)]
        cells = []
        for rows in (1, 8, 32, 64, 512):
            x = jnp.asarray(rng.standard_normal((rows, shape[1])), jnp.float32)
            y = np.asarray(layers.linear(x, weight, shape[0], implementation=implementation))
            expected = np.asarray(x.astype(jnp.bfloat16).astype(jnp.float32)).astype(np.float64) @ rounded.T
            error = np.abs(y - expected).max() / np.abs(expected).max()
            assert error < LIMITS[rows <= 64], f"{name} of {rows} rows differs by {error:.1e}"
            cells.append(f"{rows}: {1e6 * seconds(weights, x, shape[0], implementation):.0f} ({error:.0e})")
        say(f"{name:10} {', '.join(cells)}")


if __name__ == "__main__":
    main()
