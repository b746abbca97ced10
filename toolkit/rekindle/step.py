"""One tick on the device: a pure function from pages, slots and a packed plan to the same and the next tokens."""

import math
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.adjustments import Adjustments, record
from rekindle.buckets import QUERY_BLOCK, Bucket
from rekindle.models.config import ModelConfig
from rekindle.models.decoder import Decoder
from rekindle.sampling import sample
from rekindle.sampling_rows import COLUMNS, SamplingRows
from rekindle.scores import score_if, score_prompt
from rekindle_kernels import api as kernels

Pages = tuple[jax.Array, ...]
"""The page pool: for each layer (pages, 2, kv_heads, page_size, head_dim), keys and values of one page side by side."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Slots:
    """What the next tick needs of each running request, kept on the device. The last row is the null slot of padding.

    Attributes:
        token: (slots,) int32, the newest token, not yet in the pages.
        length: (slots,) int32, positions in the pages, which is also the newest token's position.
        page_table: (slots, pages_per_request) int32.
        sampling: (slots, COLUMNS) int32, packed `SamplingRows`.
        adjustments: what else changes the logits of each slot.
    """

    token: jax.Array
    length: jax.Array
    page_table: jax.Array
    sampling: jax.Array
    adjustments: Adjustments


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TickOutputs:
    """What the host reads of a tick. Scores are as `scores.score` gives them, zeros where none are wanted.

    Attributes:
        tokens: (samples + decode_rows,) int32, first of the completed prompts, then of the decode rows.
        scores: (samples + decode_rows, columns) int32, of these tokens.
        prompt_scores: (prefill_tokens, columns) int32, of the known next token of each prompt token.
    """

    tokens: jax.Array
    scores: jax.Array
    prompt_scores: jax.Array


A = TypeVar("A", np.ndarray, jax.Array)


@dataclass(frozen=True, slots=True)
class TickInputs(Generic[A]):
    """One plan as arrays: prefill blocks, the chunks among them that complete a prompt, and decode rows.

    Attributes:
        tokens: (prefill_tokens,) prompt tokens in blocks of `QUERY_BLOCK`.
        targets: (prefill_tokens,) the next token of each if it is to be scored, else -1.
        block_slot, block_start, block_page: (blocks,) whose block it is, its first position, the page it goes to.
        sample_index: (samples,) index into `tokens` of each completed prompt's last token.
        sample_slot, sample_length: (samples,) its slot, and how many tokens the prompt has.
        sample_params: (samples, COLUMNS) its packed `SamplingRows`.
        chunk_slot: (samples,) the slots of all chunks.
        chunk_table: (samples, pages_per_request) their page tables.
        row_slot, row_page: (decode_rows,) the slots that decode, and the page that each one's token goes to.
    """

    tokens: A
    targets: A
    block_slot: A
    block_start: A
    block_page: A
    sample_index: A
    sample_slot: A
    sample_length: A
    sample_params: A
    chunk_slot: A
    chunk_table: A
    row_slot: A
    row_page: A


def samples_of(bucket: Bucket, max_running: int) -> int:
    """How many prompts can have a chunk in one tick, and so be completed in it."""
    return min(bucket.blocks, max_running)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the fields of `TickInputs` are in the packed array of one bucket."""

    bucket: Bucket
    max_running: int
    pages_per_request: int

    @classmethod
    def of(cls, bucket: Bucket, slots: Slots) -> "Layout":
        """For these slots, arrays or shapes."""
        rows, pages_per_request = slots.page_table.shape
        return cls(bucket, rows - 1, pages_per_request)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each field, in order."""
        bucket, samples = self.bucket, samples_of(self.bucket, self.max_running)
        by_token = dict.fromkeys(("tokens", "targets"), (bucket.prefill_tokens,))
        by_block = dict.fromkeys(("block_slot", "block_start", "block_page"), (bucket.blocks,))
        by_row = dict.fromkeys(("row_slot", "row_page"), (bucket.decode_rows,))
        wide = {"sample_params": (samples, COLUMNS), "chunk_table": (samples, self.pages_per_request)}
        known = by_token | by_block | by_row | wide
        return {field.name: known.get(field.name, (samples,)) for field in fields(TickInputs)}

    def split(self, packed: A) -> TickInputs[A]:
        """Views of the fields inside one packed int32 array, of numpy on the host and of jax inside the program."""
        views, at = {}, 0
        for name, shape in self.shapes().items():
            size = math.prod(shape)
            views[name] = packed[at : at + size].reshape(shape)
            at += size
        return TickInputs(**views)

    def blank(self) -> np.ndarray:
        """A packed array in which every row is padding: it belongs to the null slot and the null page."""
        packed = np.zeros(sum(map(math.prod, self.shapes().values())), np.int32)
        views = self.split(packed)
        for slot in (views.block_slot, views.sample_slot, views.chunk_slot, views.row_slot):
            slot[:] = self.max_running
        views.targets[:] = -1
        return packed


def empty_slots(max_running: int, pages_per_request: int, vocab_size: int) -> Slots:
    """Slots of an idle engine, and the null slot."""
    rows = max_running + 1
    return Slots(
        token=jnp.zeros(rows, jnp.int32),
        length=jnp.zeros(rows, jnp.int32),
        page_table=jnp.zeros((rows, pages_per_request), jnp.int32),
        sampling=jnp.zeros((rows, COLUMNS), jnp.int32),
        adjustments=Adjustments.empty(rows, vocab_size),
    )


def empty_pages(
    config: ModelConfig,
    num_pages: int,
    page_size: int,
    dtype: jnp.dtype,
    implementation: kernels.Implementation | None = None,
) -> Pages:
    """A page pool of zeros, one array a layer, for the kernels of `implementation`."""
    shape = (num_pages, 2, config.num_kv_heads, page_size, config.head_dim)
    return tuple(kernels.empty(shape, dtype, implementation=implementation) for _ in range(config.num_layers))


def step(
    decoder: Decoder,
    pages: Pages,
    slots: Slots,
    packed: jax.Array,
    bucket: Bucket,
    max_logprobs: int,
    implementation: kernels.Implementation | None = None,
) -> tuple[Pages, Slots, TickOutputs]:
    """Run one tick: prefill blocks and decode rows through the decoder, then sample.

    Args:
        decoder: the model.
        pages, slots: the device state, donated by the caller.
        packed: one int32 array, `Layout` says what is where.
        bucket: the padded shape, static.
        max_logprobs: room for this many of the likeliest tokens in scores, static.
        implementation: of the kernels, static; None is the best for this process's platform.

    Returns:
        Pages and slots after the tick, and what the host reads.
    """
    null_slot = len(slots.token) - 1
    inputs = Layout.of(bucket, slots).split(packed)
    page_size = pages[0].shape[3]
    row_length = slots.length[inputs.row_slot]
    page_table = slots.page_table.at[inputs.chunk_slot].set(inputs.chunk_table)
    page_table = page_table.at[inputs.row_slot, row_length // page_size].set(inputs.row_page)
    parameters = slots.sampling.at[inputs.sample_slot].set(inputs.sample_params)
    slots = replace(slots, page_table=page_table, sampling=parameters)

    block_positions = inputs.block_start[:, None] + jnp.arange(QUERY_BLOCK, dtype=jnp.int32)[None]
    tokens = jnp.concatenate([inputs.tokens, slots.token[inputs.row_slot]])
    positions = jnp.concatenate([block_positions.reshape(-1), row_length])
    hidden, pages = decoder(tokens, positions, pages, TickAttention(inputs, slots, bucket, page_size, implementation))

    sampled = jnp.concatenate([hidden[inputs.sample_index], hidden[bucket.prefill_tokens :]])
    owners = jnp.concatenate([inputs.sample_slot, inputs.row_slot])
    lengths = jnp.concatenate([inputs.sample_length, row_length + 1])
    rows, logits = SamplingRows.unpack(parameters[owners]), decoder.logits(sampled)
    new_tokens = sample(logits, rows, lengths, slots.adjustments, owners)
    slots = replace(
        slots,
        token=slots.token.at[owners].set(new_tokens),
        length=slots.length.at[owners].set(lengths).at[null_slot].set(0),
        adjustments=record(slots.adjustments, owners, new_tokens),
    )
    outputs = TickOutputs(
        tokens=new_tokens,
        scores=score_if(rows.scored > 0, logits, new_tokens, max_logprobs),
        prompt_scores=score_prompt(hidden[: bucket.prefill_tokens], inputs.targets, decoder.logits, max_logprobs),
    )
    return pages, slots, outputs


@dataclass(frozen=True, slots=True)
class TickAttention:
    """How this tick's tokens meet the pages: prefill blocks and decode rows each by their own kernel call."""

    inputs: TickInputs[jax.Array]
    slots: Slots
    bucket: Bucket
    page_size: int
    implementation: kernels.Implementation | None

    def __call__(self, q: jax.Array, k: jax.Array, v: jax.Array, pages: jax.Array) -> tuple[jax.Array, jax.Array]:
        tokens, scale = self.bucket.prefill_tokens, q.shape[-1] ** -0.5
        null_slot = len(self.slots.token) - 1
        kv = jnp.stack([k, v], axis=1)
        outputs = []
        if tokens:
            blocks = jnp.moveaxis(kv[:tokens].reshape(-1, QUERY_BLOCK, *kv.shape[1:]), 1, 3)
            offsets = self.inputs.block_start % self.page_size
            pages = kernels.write(pages, blocks, self.inputs.block_page, offsets, implementation=self.implementation)
        if self.bucket.decode_rows:
            offsets = self.slots.length[self.inputs.row_slot] % self.page_size
            pages = kernels.write(
                pages, kv[tokens:, :, :, None], self.inputs.row_page, offsets, implementation=self.implementation
            )
        if tokens:
            table, owners = self.slots.page_table, self.inputs.block_slot
            starts = jnp.where(owners == null_slot, -1, self.inputs.block_start)
            block_q = q[:tokens].reshape(-1, QUERY_BLOCK, *q.shape[1:])
            out = kernels.attend_blocks(
                block_q, pages, table, owners, starts, scale=scale, implementation=self.implementation
            )
            outputs.append(out.reshape(tokens, *q.shape[1:]))
        if self.bucket.decode_rows:
            table = self.slots.page_table[self.inputs.row_slot]
            visible = jnp.where(self.inputs.row_slot == null_slot, 0, self.slots.length[self.inputs.row_slot] + 1)
            out = kernels.attend_rows(
                q[tokens:], pages, table, visible, scale=scale, implementation=self.implementation
            )
            outputs.append(out)
        return jnp.concatenate(outputs), pages
