"""Measure recurrent layers of the sizes of Qwen3.5-9B against copying the bytes that they must read and write.

`python -m tests.bench.states`. A decode row reads and writes its states; a prefill of 512 tokens is mostly products.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle_kernels import states
from rekindle_kernels.api import Implementation
from tests.bench import machine

LAYERS, HEADS, KEY_HEADS, WIDTH, CHANNELS, TAPS = 24, 32, 16, 128, 8192, 4
BLOCKS, TOKENS = 32, 16
COPIED: Final = {
    "a decode row's matrices": HEADS * WIDTH * WIDTH,
    "a decode row's convolution": (TAPS - 1) * CHANNELS,
    "a prefill of 512 tokens": BLOCKS * TOKENS * HEADS * WIDTH,
    "a convolution of 512 tokens": BLOCKS * TOKENS * CHANNELS,
}
"""The numbers that each measurement must read and write at least, by layer: states, or values and results."""


def _normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(shape).standard_normal(shape, np.float32))


def _tokens(*lead: int) -> tuple[jax.Array, ...]:
    """Return q, k, v, decay and beta."""
    keys = _normal(*lead, KEY_HEADS, WIDTH)
    keys /= jnp.linalg.norm(keys, axis=-1, keepdims=True)
    of_heads = _normal(*lead, HEADS)
    return keys, keys, _normal(*lead, HEADS, WIDTH), -0.1 * jnp.abs(of_heads), jax.nn.sigmoid(of_heads)


class Layers:
    """One program over all layers, each on the result of the one before, called again and again on donated states."""

    def __init__(
        self, call: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]], x: jax.Array, *state: int
    ) -> None:
        self._states = [jnp.zeros((2, *state)) for _ in range(LAYERS)]
        self._x = x

        def run(x: jax.Array, states: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            updated = []
            for each in states:
                x, after = call(x, each)
                updated.append(after)
            return x, updated

        self._run = jax.jit(run, donate_argnums=1)

    def __call__(self) -> None:
        """Run the program, and wait for its end."""
        result, self._states = self._run(self._x, self._states)
        jax.block_until_ready((result, self._states))


class Copies:
    """Copies of so many numbers for each layer, on as many threads as there are cores."""

    def __init__(self, numbers: int) -> None:
        self._arrays = [(np.zeros(numbers, np.float32), np.ones(numbers, np.float32)) for _ in range(LAYERS)]
        self._threads = ThreadPoolExecutor(machine.cores())

    def __call__(self) -> None:
        """Copy all arrays, one after the other within each thread's part."""
        list(self._threads.map(self._part, range(machine.cores())))

    def _part(self, part: int) -> None:
        for to, of in self._arrays:
            size = len(to) // machine.cores()
            np.copyto(to[part * size :][:size], of[part * size :][:size])


def measurements(implementation: Implementation) -> dict[str, Layers]:
    """Make the measurements, by the names of `COPIED`."""
    row, blocks = jnp.zeros(1, jnp.int32), jnp.zeros(BLOCKS, jnp.int32)
    places = (blocks, TOKENS * jnp.arange(BLOCKS, dtype=jnp.int32), jnp.full(BLOCKS, TOKENS, jnp.int32))
    weight = _normal(CHANNELS, TAPS) / TAPS

    def recurrence(lead: tuple[int, ...], places: tuple[jax.Array, ...]) -> Layers:
        q, k, v, decay, beta = _tokens(*lead)
        function: Callable[..., Any] = states.recur_rows if len(lead) == 1 else states.recur_blocks

        def call(v: jax.Array, state: jax.Array) -> Any:
            return function(q, k, v, decay, beta, state, *places, implementation=implementation)

        return Layers(call, v, HEADS, WIDTH, WIDTH)

    def convolution(lead: tuple[int, ...], places: tuple[jax.Array, ...]) -> Layers:
        function: Callable[..., Any] = states.convolve_rows if len(lead) == 1 else states.convolve_blocks

        def call(x: jax.Array, state: jax.Array) -> Any:
            return function(x, weight, None, state, *places, implementation=implementation)

        return Layers(call, _normal(*lead, CHANNELS), TAPS - 1, CHANNELS)

    layers = (
        recurrence((1,), (row,)),
        convolution((1,), (row,)),
        recurrence((BLOCKS, TOKENS), places),
        convolution((BLOCKS, TOKENS), places),
    )
    return dict(zip(COPIED, layers, strict=True))


def _seconds(call: Callable[[], None]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def measure(implementation: Implementation, rounds: int) -> None:
    """Print the milliseconds of each measurement by layer, and their ratio to the copy; the two take turns."""
    for name, layers in measurements(implementation).items():
        copies = Copies(COPIED[name])
        pairs = [(_seconds(layers), _seconds(copies)) for _ in range(rounds + 1)][1:]
        ratio = median(mine / copy for mine, copy in pairs)
        milliseconds = [1e3 * median(times) / LAYERS for times in zip(*pairs, strict=True)]
        print(f"{name:30s} {milliseconds[0]:8.3f} ms a layer, copy {milliseconds[1]:6.3f} ms, {ratio:.2f} of the copy")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--implementation", default="cpu", choices=("cpu", "xla"))
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    print(", ".join(f"{key} {value}" for key, value in machine.describe().items()))
    measure(arguments.implementation, arguments.rounds)
