"""Measure steps of a model with the widths of Qwen3.5-9B: one row against reading its bytes, a prompt against products.

The model has four layers with random weights, one with attention. `python -m tests.bench.state_steps`.
"""

import argparse
from functools import partial
from math import prod
from statistics import median
from typing import Any, Final

import numpy as np

from rekindle.core.models.config import DeltaNet, ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.formats.checkpoints.checkpoint import LazyTensors
from rekindle.formats.families.registry import parse_config
from rekindle_kernels.blocks import Array
from tests.bench import machine
from tests.bench.contenders import measure_limits
from tests.bench.costs import BYTES
from tests.bench.experts import Random
from tests.bench.state_prefixes import CONFIG
from tests.bench.steps import BareStep

WIDTHS: Final[dict[str, Any]] = CONFIG | {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "linear_num_value_heads": 32,
    "layer_types": CONFIG["layer_types"][:4],
}
CONTEXT, PREFILL = 100, 512


def model() -> Random:
    """Return a model of `WIDTHS` with random weights."""
    config = parse_config(WIDTHS, "the bench")

    def numbers(name: str, shape: tuple[int, ...]) -> Array:
        return np.random.default_rng(len(name)).standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)

    shapes = expected_shapes(config).items()
    return Random(config, LazyTensors({name: partial(numbers, name, shape) for name, shape in shapes}))


def row_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of one row: its reads of weights and states, and its writes of states."""
    return BYTES[dtype] * sum(map(prod, expected_shapes(config).values())) + 2 * config.state_bytes


def prompt_operations(config: ModelConfig, tokens: int) -> int:
    """Return the operations of a prompt: products with the weights of layers, attention, and recurrences."""
    shapes = expected_shapes(config)
    weights = sum(prod(shape) for name, shape in shapes.items() if ".layers." in name and len(shape) == 2)
    attention = sum(2 * tokens * each.heads * each.head_dim for each in config.attentions)
    deltas = [layer.state for layer in config.layers if isinstance(layer.state, DeltaNet)]
    recurrences = sum(6 * each.heads * each.key_size * each.value_size for each in deltas)
    head = 2 * config.vocab_size * config.hidden_size
    return tokens * (2 * weights + attention + recurrences) + head


def measure(dtype: str, rounds: int) -> None:
    """Print the milliseconds of both steps, and their ratios to the machine's limits."""
    random = model()
    row, prompt = BareStep(dtype, 0, 1, CONTEXT, random), BareStep(dtype, PREFILL, 0, 0, random)
    times = [(row.seconds(), prompt.seconds()) for _ in range(rounds + 2)][2:]
    of_row, of_prompt = (median(column) for column in zip(*times, strict=True))
    limits = measure_limits()
    reading = row_bytes(random.config, dtype) / limits["bandwidth"]
    computing = prompt_operations(random.config, PREFILL) / limits[dtype]
    print(f"{dtype}: one row {1e3 * of_row:.1f} ms, {of_row / reading:.2f} of reading its weights and states")
    print(f"{dtype}: {PREFILL} tokens {1e3 * of_prompt:.0f} ms, {of_prompt / computing:.2f} of their operations")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=tuple(BYTES))
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    print(", ".join(f"{key} {value}" for key, value in machine.describe().items()))
    measure(arguments.dtype, arguments.rounds)
