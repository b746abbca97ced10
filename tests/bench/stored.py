"""Measure linear layers over quantized blocks against float32 and bfloat16 weights of the same shape.

The weights of one program have 64 MB together, to be read from memory. `taskset -c 0 python -m tests.bench.stored`
measures one thread.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final

import gguf
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.formats.checkpoints.gguf.kinds import kind_of
from rekindle_kernels import layers
from rekindle_kernels.blocks import Blocks
from rekindle_kernels.cpu import library
from rekindle_kernels.storage import Activations, BlockRows, Stored, Weight, layout_of, storage_of

SHAPES: Final = ((3072, 576), (1024, 2048), (2048, 8192))
ROWS: Final = (1, 4, 8, 32)
BYTES: Final = 64 << 20
KINDS: Final = (
    "Q4_0",
    "Q4_1",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q6_K",
    "float8:64",
    "float8:128",
    "float4:16",
    "float4:32",
    "nf4:64",
)


def blocks_of(name: str, shape: tuple[int, int]) -> Blocks:
    """Make random blocks with finite float16 numbers."""
    kind = kind_of(gguf.GGMLQuantizationType[name])
    data = np.random.default_rng(0).integers(0, 60, (shape[0], shape[1] // kind.numbers * kind.size), np.uint8)
    return Blocks(data, kind)


def matrix_of(name: str, shape: tuple[int, int]) -> BlockRows:
    """Make random blocks: of a file in GGUF, or codes with small scales and without NaN."""
    if ":" in name:
        layout = layout_of(name)
        form = shape[0], shape[1] // layout.numbers, layout.size
        groups = np.random.default_rng(0).integers(0, 127, form, np.uint8)
        groups[..., :4] = np.array(2**-8, np.float32)[None].view(np.uint8)
        return BlockRows(name, groups.reshape(shape[0], -1))
    return BlockRows.of(blocks_of(name, shape))


def weights_of(name: str, shape: tuple[int, int], activations: Activations) -> list[Weight]:
    """Return equal weights in the form of a dtype or of a kind."""
    if name in ("float32", "bfloat16"):
        form = layers.packed(shape, jnp.dtype(name), implementation="cpu")
        one = np.full(form.shape, 0.25, form.dtype)
        return [jnp.asarray(one.copy()) for _ in range(max(2, BYTES // one.nbytes))]
    matrix = matrix_of(name, shape)
    storage = storage_of([(matrix.kind, len(matrix))], activations)
    one = np.zeros(layers.packed(shape, storage, implementation="cpu").shape, np.uint8)
    layers.pack_blocks([matrix], one, storage, shape[1], implementation="cpu")
    return [Stored(jnp.asarray(one.copy()), storage) for _ in range(max(2, BYTES // one.nbytes))]


def timer(name: str, shape: tuple[int, int], rows: int, activations: Activations) -> Callable[[], float]:
    """Return a function that measures the microseconds of one layer."""
    weights, x = weights_of(name, shape, activations), jnp.ones((rows, shape[1]))
    call = jax.jit(
        lambda x, weights: [layers.linear(x, weight, shape[0], implementation="cpu")[0, 0] for weight in weights]
    )
    return partial(_seconds, call, x, weights)


def _seconds(call: Callable[..., object], x: jax.Array, weights: list[Weight]) -> float:
    start = perf_counter()
    jax.block_until_ready(call(x, weights))
    return (perf_counter() - start) / len(weights) * 1e6


def measure(shape: tuple[int, int], rows: int, names: list[str], rounds: int, activations: Activations) -> None:
    """Print the fastest of some rounds for each kind, all kinds in turn, and the ratios of bfloat16 and float32."""
    fitting = [name for name in names if shape[1] % layout_of(name).numbers == 0]
    timers = {name: timer(name, shape, rows, activations) for name in ("float32", "bfloat16", *fitting)}
    best = dict.fromkeys(timers, float("inf"))
    for _ in range(rounds + 1):
        for name, timed in timers.items():
            best[name] = min(best[name], timed())
    for name in timers:
        ratios = f"{best['bfloat16'] / best[name]:5.2f} x bfloat16 {best['float32'] / best[name]:5.2f} x float32"
        print(f"{shape[0]}x{shape[1]} {rows:3} rows {name:10} {best[name]:8.1f} us {ratios}", flush=True)


def main() -> None:
    """Print the machine's state and all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--activations", default="int16")
    arguments = parser.parse_args()
    load, threads = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"{library.instruction_set()}, {threads} threads, load {load:.1f}, {arguments.activations}")
    for shape in SHAPES[: arguments.shapes]:
        for rows in arguments.rows:
            measure(shape, rows, arguments.kinds, arguments.rounds, arguments.activations)


if __name__ == "__main__":
    main()
