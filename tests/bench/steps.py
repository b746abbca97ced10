"""Measure our bare steps, without the engine around a step, for a comparison with the limits of the machine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.assembly.loading.huge_pages import collapse, spans_of
from rekindle.assembly.weights.load import load_weights
from rekindle.core.buckets import QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.place import Place
from rekindle.core.device.programs.lowering import Programs
from rekindle.core.device.sampling.rows import COLUMNS
from rekindle.core.device.state import Sizes, empty_pages, empty_slots
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.weights.form import WeightForm
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.settings.engine import Settings
from rekindle_kernels.blocks import Tensor
from tests.bench import costs
from tests.bench.workload import MODEL

Table = np.ndarray[Any, np.dtype[np.int32]]
PAGE_SIZE = Settings().page_size


@dataclass(frozen=True)
class StepCase:
    """One step to time; `reads_pages` adds the keys and values of one row to its least reads."""

    name: str
    prefill_tokens: int
    decode_rows: int
    context: int
    reads_pages: bool = False

    def least_s(self, dtype: str, limits: dict[str, float]) -> float:
        """Return the least seconds of the machine. One row is bound by reading, more rows by computing."""
        if not self.prefill_tokens and self.decode_rows == 1:
            pages = costs.kv_bytes(dtype, self.context) if self.reads_pages else 0
            return (costs.weight_bytes(dtype) + pages) / limits["bandwidth"]
        flops = self.decode_rows * costs.decode_flops(self.context)
        if self.prefill_tokens:
            flops += costs.prefill_flops(self.prefill_tokens)
        return flops / limits[dtype]


CASES = (
    StepCase("1 row at context 200 / reading the weights", 0, 1, 200),
    StepCase("1 row at context 7,900 / reading the weights and its pages", 0, 1, 7_900, reads_pages=True),
    StepCase("32 rows at context 200 / their operations", 0, 32, 200),
    StepCase("prefill of 512 / its operations", 512, 0, 0),
)


class Model(Protocol):
    """The part of a checkpoint that a step needs."""

    @property
    def config(self) -> ModelConfig:
        """The config of the model."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the model, by their names."""


class BareStep:
    """The compiled step of one bucket on a model, by default the bench's, with every row busy."""

    def __init__(
        self,
        dtype: str | WeightForm,
        prefill_tokens: int,
        decode_rows: int,
        context: int,
        model: Model | None = None,
        kv_dtype: str | None = None,
    ):
        checkpoint: Model = open_checkpoint(MODEL) if model is None else model
        form = dtype if isinstance(dtype, WeightForm) else WeightForm(jnp.dtype(dtype))
        bucket, rows = Bucket(prefill_tokens, decode_rows), max(1, decode_rows)
        per_row = -(-max(prefill_tokens, context + 1) // PAGE_SIZE)
        tables = np.arange(1, 1 + rows * per_row, dtype=np.int32).reshape(rows, per_row)
        of_pages = jnp.dtype(kv_dtype or form.dtype)
        pages = empty_pages(checkpoint.config, 1 + tables.size, PAGE_SIZE, of_pages)
        self._pages = jax.tree.map(jnp.zeros_like, pages)  # memory that nobody wrote to is read in no time
        self._slots = replace(
            empty_slots(rows, per_row, checkpoint.config.vocab_size, checkpoint.config.states()),
            token=jnp.arange(rows + 1, dtype=jnp.int32),  # unlike tokens, which go to unlike experts
            page_table=jnp.pad(jnp.asarray(tables), ((0, 1), (0, 0))),
        )
        sizes = Sizes(1 + tables.size, PAGE_SIZE, per_row, rows, Settings().max_logprobs)
        programs = Programs(checkpoint.config, sizes, form, Place((jax.devices()[0],)), kv_dtype=of_pages)
        self._weights = load_weights(
            checkpoint.config, checkpoint.tensors, form, implementation=programs.shapes.implementation
        )
        collapse(spans_of(self._weights))
        self._program = programs.compile(bucket)
        self._length = np.append(np.full(rows, context, np.int32), np.int32(0))
        self._packed = _inputs(bucket, rows, tables, context)

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights."""
        return sum(array.nbytes for array in self._weights)

    def seconds(self, sampling: Table | None = None) -> float:
        """Run once; return the seconds from the dispatch until the outputs are there.

        Args:
            sampling: the packed sampling parameters of the decode rows, (rows, COLUMNS); None is greedy.
        """
        packed = np.zeros((len(self._length), COLUMNS), np.int32)
        if sampling is not None:
            packed[:-1] = sampling
        self._slots = replace(self._slots, length=jnp.asarray(self._length), sampling=jnp.asarray(packed))
        jax.block_until_ready(self._slots)
        started = perf_counter()
        self._pages, self._slots, outputs = self._program(self._weights, self._pages, self._slots, self._packed)
        outputs.tokens.block_until_ready()
        return perf_counter() - started


def step_seconds(dtype: str, prefill_tokens: int, decode_rows: int, context: int, repeats: int = 20) -> list[float]:
    """Return the seconds of each of `repeats` steps, without the first steps, which touch the pages first."""
    step = BareStep(dtype, prefill_tokens, decode_rows, context)
    return [step.seconds() for _ in range(3 + repeats)][3:]


def _inputs(bucket: Bucket, rows: int, tables: Table, context: int) -> Table:
    """Make the inputs of a busy bucket: one prompt fills the prefill part, and every decode row is used."""
    layout = InputLayout(bucket, rows, tables.shape[1])
    packed = layout.padding()
    inputs = layout.unpack(packed)
    if bucket.prefill_tokens:
        inputs.block_slot[:] = 0
        inputs.block_start[:] = np.arange(bucket.blocks) * QUERY_BLOCK
        inputs.block_page[:] = tables[0, inputs.block_start // PAGE_SIZE]
        inputs.block_count[:] = QUERY_BLOCK
        inputs.chunk_slot[0], inputs.chunk_table[0] = 0, tables[0]
        inputs.sample_index[0] = bucket.prefill_tokens - 1
        inputs.sample_slot[0], inputs.sample_length[0] = 0, bucket.prefill_tokens
    if bucket.decode_rows:
        inputs.row_slot[:] = np.arange(rows)
        inputs.row_pages[:, 0], inputs.row_steps[:] = tables[:, context // PAGE_SIZE], 1
    return packed
