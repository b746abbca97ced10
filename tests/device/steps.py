"""Measure bare steps of the widths of 1B and 8B models against the limits of the device, measured in the same run."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.assembly.loading.kinds import quantized_kinds
from rekindle.core.buckets import QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import Program, Programs
from rekindle.core.device.state import Sizes, empty_pages, empty_slots
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.shard import WHOLE
from rekindle.core.models.weights.form import Quantize, WeightForm, held_bytes
from tests.bench.kernels_gpu import copy_rate, matrix_rate
from tests.device.parts import Rows, main
from tests.device.widths import LLAMA_1B, LLAMA_8B, TINY, config_of, random_arrays

PAGE_SIZE, WARM_UP, REPEATS = 64, 3, 20
POOL_BYTES = 60 * 10**9
BFLOAT16 = jnp.dtype(jnp.bfloat16)


@dataclass(frozen=True, slots=True)
class Case:
    """A model with a form of weights and of pages."""

    name: str
    widths: dict[str, Any]
    quantize: Quantize | None = None
    kv_dtype: str = "bfloat16"


CASES = (
    Case("1B", LLAMA_1B),
    Case("8B", LLAMA_8B),
    Case("8B, int4 weights", LLAMA_8B, "int4"),
    Case("1B, int8 pages", LLAMA_1B, None, "int8"),
    Case("8B, int8 weights", LLAMA_8B, "int8"),
)
SIZES = {
    False: ((1, 8, 32, 128, 256), (512, 4096), (128, 512, 2048, 8192)),
    True: ((1, 32, 256), (512, 4096), (512, 8192)),  # on an H200, nine programs took two minutes to compile
}
"""The rows, contexts and prompts: of models of 1B, and of 8B."""


class Model:
    """Steps of one case, compiled together, with all rows busy.

    Args:
        case: the case.
        rows: the numbers of decode rows.
        contexts: the contexts of decode rows, in tokens.
        prompts: the numbers of prompt tokens in a step.
    """

    def __init__(self, case: Case, rows: Sequence[int], contexts: Sequence[int], prompts: Sequence[int]):
        self.config, device = config_of(case.widths), jax.devices()[0]
        is_accelerator = device.platform != "cpu"
        kinds = (
            quantized_kinds(self.config, case.quantize, [WHOLE], is_accelerator=is_accelerator) if case.quantize else ()
        )
        form = WeightForm(BFLOAT16, kinds, "bfloat16", case.quantize)
        self._per_row = pages_for(max((*contexts, *prompts)))
        room = POOL_BYTES // (self.config.numbers_per_token * PAGE_SIZE * jnp.dtype(case.kv_dtype).itemsize)
        most = min(max(rows) * pages_for(max(contexts)), room)
        self.sizes = Sizes(1 + most, PAGE_SIZE, self._per_row, max(rows), 5)
        kv_dtype = jnp.dtype(case.kv_dtype)
        programs = Programs(self.config, self.sizes, form, Place((device,)), kv_dtype=kv_dtype)
        self.kernels = programs.shapes.implementation
        self.weights = random_arrays(programs.shapes.weights, device)
        self.weight_bytes = sum(held_bytes(array, device.platform) for array in programs.shapes.weights)
        self._pages = empty_pages(self.config, self.sizes.num_pages, PAGE_SIZE, kv_dtype, self.kernels)
        self.kv_bytes = programs.shapes.state.page_bytes / PAGE_SIZE
        self._slots = empty_slots(max(rows), self._per_row, self.config.vocab_size)
        self._lower, self._compile = programs.lower, programs.compile
        self._buckets = [*(Bucket(0, count) for count in rows), *(Bucket(tokens, 0) for tokens in prompts)]
        self.compile(None)

    def compile(self, options: Mapping[str, str | bool] | None) -> None:
        """Compile all steps, with options of XLA; None takes those of sessions."""

        def compiled(bucket: Bucket) -> Program:
            return (
                self._compile(bucket)
                if options is None
                else self._lower(bucket).compile(compiler_options=dict(options))
            )

        with ThreadPoolExecutor(8) as pool:  # XLA compiles without the interpreter's lock
            self._programs = dict(zip(self._buckets, pool.map(compiled, self._buckets), strict=True))

    def decode_seconds(self, rows: int, context: int) -> float:
        """Return the median seconds of a decode step; one step is in flight while the next is dispatched."""
        per_row = pages_for(context)
        tables = np.random.default_rng(0).permutation(np.arange(1, 1 + rows * per_row, dtype=np.int32))
        tables = tables.reshape(rows, per_row)
        bucket, layout = Bucket(0, rows), InputLayout.of(Bucket(0, rows), self._slots)
        full = np.zeros((self.sizes.max_running + 1, self._per_row), np.int32)
        full[:rows, :per_row] = tables
        length = np.zeros(self.sizes.max_running + 1, np.int32)
        length[:rows] = context
        self._slots = replace(self._slots, page_table=jnp.asarray(full), length=jnp.asarray(length))
        steps = []
        for done in range(WARM_UP + REPEATS):
            packed = layout.padding()
            inputs = layout.unpack(packed)
            inputs.row_slot[:] = np.arange(rows)
            inputs.row_pages[:, 0], inputs.row_steps[:] = tables[:, (context + done) // PAGE_SIZE], 1
            steps.append(packed)
        return self._seconds(bucket, steps)

    def prefill_seconds(self, tokens: int) -> float:
        """Return the median seconds of a step with one prompt."""
        bucket, layout = Bucket(tokens, 0), InputLayout.of(Bucket(tokens, 0), self._slots)
        table = np.zeros(self._per_row, np.int32)
        table[: -(-tokens // PAGE_SIZE)] = np.arange(1, 1 + -(-tokens // PAGE_SIZE))
        packed = layout.padding()
        inputs = layout.unpack(packed)
        inputs.block_slot[:] = 0
        inputs.block_start[:] = np.arange(bucket.blocks) * QUERY_BLOCK
        inputs.block_page[:] = table[inputs.block_start // PAGE_SIZE]
        inputs.block_count[:] = QUERY_BLOCK
        inputs.chunk_slot[0], inputs.chunk_table[0] = 0, table
        inputs.sample_index[0] = tokens - 1
        inputs.sample_slot[0], inputs.sample_length[0] = 0, tokens
        return self._seconds(bucket, [packed] * (WARM_UP + REPEATS))

    def _seconds(self, bucket: Bucket, steps: Sequence[np.ndarray[Any, Any]]) -> float:
        program, times, earlier, began = self._programs[bucket], [], None, perf_counter()
        for packed in steps:
            self._pages, self._slots, outputs = program(self.weights, self._pages, self._slots, packed)
            if earlier is not None:
                earlier.block_until_ready()
                times.append(perf_counter() - began)
                began = perf_counter()
            earlier = outputs.tokens
        jax.block_until_ready(earlier)
        return median(times[WARM_UP:])


def matrix_numbers(config: ModelConfig) -> int:
    """Return the numbers of all matrices multiplied with each token, without the head."""
    skipped = ("model.embed_tokens.weight", "lm_head.weight")
    return sum(int(np.prod(shape)) for name, shape in expected_shapes(config).items() if name not in skipped)


def least_decode(model: Model, rows: int, context: int, copy: float, matrix: float) -> float:
    """Return the least seconds of a decode step: its reads, or its operations."""
    config = model.config
    head = config.vocab_size * config.hidden_size
    reads = model.weight_bytes + rows * context * model.kv_bytes
    attention = 4 * sum(each.heads * each.head_dim for each in config.attentions) * context
    return max(reads / copy, rows * (2 * (matrix_numbers(config) + head) + attention) / matrix)


def least_prefill(config: ModelConfig, tokens: int, matrix: float) -> float:
    """Return the least seconds of the operations of a prompt."""
    attention = 2 * sum(each.heads * each.head_dim for each in config.attentions) * tokens * (tokens + 1)
    return (2 * matrix_numbers(config) * tokens + attention + 2 * config.vocab_size * config.hidden_size) / matrix


def measure(rows: Rows) -> None:
    """Measure each case, as far as the limit allows."""
    copied, side, calls = (2**12, 64, 1) if rows.tiny else (2**30, 8192, 20)
    copy, matrix = copy_rate(copied, calls), matrix_rate(side, "bfloat16", calls)
    for case in CASES:
        if rows.seconds_left > 0:
            measure_case(rows, replace(case, widths=TINY) if rows.tiny else case, copy, matrix)


def measure_case(rows: Rows, case: Case, copy: float, matrix: float) -> None:
    """Measure the steps of one case. Its memory is free again at the end."""
    counts, contexts, prompts = ((1, 2), (32,), (32,)) if rows.tiny else SIZES[case.name.startswith("8B")]
    try:
        model = Model(case, counts, contexts, prompts)
    except Exception as error:
        rows.add(**{"": case.name, "error": f"{type(error).__name__}: {str(error).strip():.200}"})
        return

    def decode(count: int, context: int) -> dict[str, Any]:
        seconds = model.decode_seconds(count, context)
        least = least_decode(model, count, context, copy, matrix)
        return {"ms": 1e3 * seconds, "of the limit": least / seconds, "tokens/s": count / seconds}

    def prefill(tokens: int) -> dict[str, Any]:
        seconds = model.prefill_seconds(tokens)
        least = least_prefill(model.config, tokens, matrix)
        return {"ms": 1e3 * seconds, "of the limit": least / seconds, "tokens/s": tokens / seconds}

    for context, count in product(contexts, counts):
        if count * pages_for(context) < model.sizes.num_pages:
            rows.attempt(f"{case.name}: {count} rows at {context}", partial(decode, count, context))
    for tokens in prompts:
        rows.attempt(f"{case.name}: a prompt of {tokens}", partial(prefill, tokens))


def pages_for(context: int) -> int:
    """Return the pages of a row for all its steps."""
    return -(-(context + WARM_UP + REPEATS + 1) // PAGE_SIZE)


if __name__ == "__main__":
    main(measure)
