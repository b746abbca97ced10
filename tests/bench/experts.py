"""Measure a mixture of experts: the time of a step of one row against reading its weights.

The model has random weights, and most of it is experts. `python -m tests.bench.experts`.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from statistics import median
from typing import Final

import numpy as np

from rekindle.core.models.config import ExpertsConfig, FeedForwardConfig, ModelConfig, Rope, RouterConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.formats.checkpoints.checkpoint import LazyTensors
from rekindle_kernels.blocks import Array, Tensor
from tests.bench import machine
from tests.bench.contenders import measure_limits
from tests.bench.costs import BYTES
from tests.bench.steps import BareStep

LAYERS, HIDDEN, WIDTH, EXPERTS, CHOSEN, VOCABULARY = 8, 1024, 512, 64, 8, 4096
CONTEXT = 100
MANY: Final = (1, 8, 32)


@dataclass(frozen=True)
class Random:
    """A model with random weights."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]


def model() -> Random:
    """Make a Qwen3-MoE with 64 experts, 8 of them for each token."""
    plain = ModelConfig.llama(
        "bench", VOCABULARY, HIDDEN, WIDTH, LAYERS, 16, 4, 64, 4096, 1e-6, Rope(1e6), tied_embeddings=True
    )
    experts = ExpertsConfig(EXPERTS, FeedForwardConfig(WIDTH), RouterConfig(CHOSEN, normalised=True))
    config = replace(plain, layers=tuple(replace(layer, feed_forward=experts) for layer in plain.layers))

    def numbers(name: str, shape: tuple[int, ...]) -> Array:
        return np.random.default_rng(len(name)).standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)

    shapes = expected_shapes(config).items()
    return Random(config, LazyTensors({name: partial(numbers, name, shape) for name, shape in shapes}))


def needed_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of weights read by a step of one row."""
    shapes = expected_shapes(config)
    of_experts = sum(prod(shape) for name, shape in shapes.items() if ".experts." in name)
    others = sum(map(prod, shapes.values())) - of_experts
    return BYTES[dtype] * (others + of_experts * CHOSEN // EXPERTS)


def measure(dtype: str, rounds: int) -> None:
    """Print the milliseconds of steps, and their ratio to reading the weights of one row."""
    mixture = model()
    steps = {rows: BareStep(dtype, 0, rows, CONTEXT, mixture) for rows in MANY}
    results: dict[int, list[float]] = {rows: [] for rows in MANY}
    for turn in range(rounds + 1):
        for rows, step in steps.items():
            seconds = step.seconds()
            if turn:
                results[rows].append(seconds)
    bandwidth = measure_limits()["bandwidth"]
    least = needed_bytes(mixture.config, dtype) / bandwidth
    whole = BYTES[dtype] * sum(map(prod, expected_shapes(mixture.config).values())) / bandwidth
    print(f"{dtype}: reading takes {1e3 * least:.1f} ms for one row, {1e3 * whole:.1f} ms for all experts")
    for rows, times in results.items():
        print(f"{rows:3d} rows  {1e3 * median(times):7.1f} ms  {median(times) / least:.2f} of reading one row's")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=tuple(BYTES))
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    print(", ".join(f"{key} {value}" for key, value in machine.describe().items()))
    measure(arguments.dtype, arguments.rounds)
