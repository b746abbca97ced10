"""Measure whole decode steps of a Llama-3-8B shape on a GPU against their bound, its bandwidth.

`python -m tests.bench.engine_gpu` on a machine with a GPU; `--tiny` runs a small shape anywhere, interpreted, to see
that it works.
"""

import argparse
import json
from contextlib import nullcontext
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.buckets import Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.state import Pages, Slots, empty_pages, empty_slots
from rekindle.core.device.step import TickOutputs, step
from rekindle.core.models.config import ModelConfig, Rope
from rekindle.core.models.config.scaling import Llama3Scaling
from rekindle.core.models.decoder import Decoder, expected_shapes
from rekindle.core.models.shard import WHOLE
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle.settings.engine import Settings
from rekindle_kernels.api import Implementation
from rekindle_kernels.gpu.target import Target, tracing_for
from tests.bench.kernels_gpu import copy_rate
from tests.bench.say import say

LLAMA_3_8B = ModelConfig.llama(
    family="llama",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_context=131_072,
    norm_eps=1e-5,
    rope=Rope(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
)
TINY = ModelConfig.llama("llama", 512, 128, 256, 2, 4, 2, 64, 131_072, 1e-5, Rope(500_000.0))
WARM_STEPS = 3


def random_decoder(config: ModelConfig, dtype: jnp.dtype) -> Decoder:
    """Make a decoder of random weights on the device; it is as fast as one with trained weights."""
    return Decoder(config, RandomWeights(dtype))


class RandomWeights:
    """A source of random weights in the layout of checkpoints, for kernels."""

    implementation: Implementation = "xla"
    shard = WHOLE

    def __init__(self, dtype: jnp.dtype):
        self.form = WeightForm(dtype)

    def get(self, request: JoinedTensors) -> jax.Array:
        """See `WeightSource`."""
        name, (_, *rest) = next(iter(request.shapes.items()))
        rows = sum(shape[0] for shape in request.shapes.values())
        dtype = self.form.dtype if request.matrix else jnp.float32
        key = jax.random.key(len(name))
        make = jax.jit(lambda: (0.02 * jax.random.normal(key, (rows, *rest), jnp.float32)).astype(dtype))
        weight: jax.Array = make()
        return weight


class DecodeBench:
    """Decode steps of one row count, each row with its own context.

    Args:
        context: how many positions of each row are in the pages when the first step begins.
        steps: how many steps there is room for.
    """

    def __init__(self, decoder: Decoder, rows: int, context: int, steps: int, page_size: int, dtype: jnp.dtype):
        self._bucket, self._rows, self._context = Bucket(0, rows), rows, context
        self._page_size = page_size
        per_row = -(-(context + steps) // page_size)
        order = np.random.default_rng(0).permutation(np.arange(1, 1 + rows * per_row, dtype=np.int32))
        self._tables = order.reshape(rows, per_row)
        config = decoder.config
        self._pages = empty_pages(config, 1 + self._tables.size, page_size, dtype, "gpu")
        self._slots = replace(
            empty_slots(rows, per_row, config.vocab_size),
            page_table=jnp.pad(jnp.asarray(self._tables), ((0, 1), (0, 0))),
            length=jnp.asarray(np.append(np.full(rows, context, np.int32), np.int32(0))),
        )
        graph, self._state = nnx.split(decoder)

        def run(state: Any, pages: Pages, slots: Slots, packed: jax.Array) -> tuple[Pages, Slots, TickOutputs]:
            decoder = nnx.merge(graph, state)
            return step(decoder, pages, slots, packed, self._bucket, Settings().max_logprobs)

        example = self._inputs(0)
        self._program = (
            jax.jit(run, donate_argnames=("pages", "slots"))
            .lower(self._state, self._pages, self._slots, example)
            .compile()
        )

    def _inputs(self, done: int) -> jax.Array:
        layout = InputLayout.of(self._bucket, self._slots)
        packed = layout.padding()
        inputs = layout.unpack(packed)
        inputs.row_slot[:] = np.arange(self._rows)
        inputs.row_page[:] = self._tables[:, (self._context + done) // self._page_size]
        return jnp.asarray(packed)

    def seconds(self, steps: int) -> list[float]:
        """Measure the seconds of each step. As in the engine, one step is in flight while the next is dispatched."""
        packed = [self._inputs(done) for done in range(steps)]
        jax.block_until_ready(packed)
        times, earlier, started = [], None, perf_counter()
        for inputs in packed:
            self._pages, self._slots, outputs = self._program(self._state, self._pages, self._slots, inputs)
            if earlier is not None:
                earlier.block_until_ready()
                times.append(perf_counter() - started)
                started = perf_counter()
            earlier = outputs.tokens
        return times


def bytes_read(config: ModelConfig, rows: int, context: int, dtype: jnp.dtype) -> int:
    """Return the bytes that a decode step reads: all weights but the embedding, and the keys and values of each row."""
    shapes = expected_shapes(config)
    weights = sum(int(np.prod(shape)) for name, shape in shapes.items() if name != "model.embed_tokens.weight")
    context_numbers = config.numbers_per_token * context
    return (weights + rows * context_numbers) * dtype.itemsize


def measure(config: ModelConfig, row_counts: list[int], context: int, steps: int, copied: int) -> dict[str, Any]:
    """Measure the tokens a second of each row count, and their fraction of the bound."""
    dtype = jnp.dtype(jnp.bfloat16)
    bandwidth = copy_rate(copied, 10)
    say(f"copy {bandwidth / 1e9:.0f} GB/s")
    decoder = random_decoder(config, dtype)
    results = []
    for rows in row_counts:
        bench = DecodeBench(decoder, rows, context, steps, Settings().page_size, dtype)
        seconds = median(bench.seconds(steps)[WARM_STEPS:])
        least = bytes_read(config, rows, context + steps // 2, dtype) / bandwidth
        rate, fraction = rows / seconds, least / seconds
        say(f"{rows:4d} rows: {1e3 * seconds:8.2f} ms a step, {rate:9.1f} tokens/s, {fraction:.3f} of the bound")
        results.append({"rows": rows, "seconds": seconds, "tokens_per_second": rate, "fraction": fraction})
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "context": context,
        "copy": bandwidth,
        "decode": results,
    }


def main() -> None:
    """Parse the arguments, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tiny", action="store_true", help="a small model, interpreted where there is no GPU")
    parser.add_argument("--out", help="write the numbers to this JSON file")
    arguments = parser.parse_args()
    interpreted = jax.default_backend() != "gpu"
    if interpreted and not arguments.tiny:
        parser.error("there is no GPU here; --tiny shows that the script works")
    if arguments.steps <= WARM_STEPS + 1:
        parser.error(f"--steps must be more than {WARM_STEPS + 1}: the first ones are not counted")
    config, copied = (TINY, 2**12) if arguments.tiny else (LLAMA_3_8B, 2**30)
    with tracing_for(Target(interpret=True)) if interpreted else nullcontext():
        results = measure(config, arguments.rows, arguments.context, arguments.steps, copied)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
