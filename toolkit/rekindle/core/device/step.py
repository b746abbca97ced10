"""One tick on the device: a pure function from pages, slots and a packed plan to pages, slots and the next tokens."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from rekindle.core.buckets import QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import InputLayout, TickInputs
from rekindle.core.device.sampling.adjustments import record_tokens
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.sampling.rows import SamplingRows
from rekindle.core.device.sampling.sample import sample
from rekindle.core.device.sampling.scores import score_prompt
from rekindle.core.device.state import Pages, Slots
from rekindle.core.device.sums import sum_states
from rekindle.core.models.attention import ScoreOptions
from rekindle.core.models.decoder import Decoder
from rekindle_kernels import api as kernels


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TickOutputs:
    """The outputs of a tick that the host reads. Scores are packed as by `scores.score`; unwanted ones are zeros.

    Attributes:
        tokens: (samples + decode_rows,) int32, first of the completed prompts, then of the decode rows; one that is
            negative says why there is none, as of `sample`.
        scores: (samples + decode_rows, columns) int32, of these tokens.
        prompt_scores: (prefill_tokens, columns) int32, of the known next token of each prompt token.
        sums: (samples, hidden) float32, the sum of the hidden states of the tokens that each chunk is asked for.
    """

    tokens: jax.Array
    scores: jax.Array
    prompt_scores: jax.Array
    sums: jax.Array


def step(
    decoder: Decoder,
    pages: Pages,
    slots: Slots,
    packed: jax.Array,
    bucket: Bucket,
    max_logprobs: int,
    implementation: kernels.Implementation | None = None,
    processor: LogitsProcessor | None = None,
) -> tuple[Pages, Slots, TickOutputs]:
    """Run one tick: prefill blocks and decode rows through the decoder, then sample.

    Args:
        pages, slots: the device state, donated by the caller.
        packed: (size,) int32, the `TickInputs` as `InputLayout` packs them.
        bucket: the padded shape, static.
        max_logprobs: how many of the likeliest tokens there is room for in scores, static.
        implementation: of the kernels, static; None is the best for this process's platform.
        processor: of logits, static.

    Returns:
        Pages and slots after the tick, and the outputs for the host.
    """
    inputs = InputLayout.of(bucket, slots).unpack(packed)
    page_size = pages[0].shape[3]
    row_length = slots.length[inputs.row_slot]
    slots = _with_plan(slots, inputs, row_length, page_size)

    block_positions = inputs.block_start[:, None] + jnp.arange(QUERY_BLOCK, dtype=jnp.int32)[None]
    tokens = jnp.concatenate([inputs.tokens, slots.token[inputs.row_slot]])
    positions = jnp.concatenate([block_positions.reshape(-1), row_length])
    lengths = jnp.concatenate([jnp.repeat(inputs.block_length, QUERY_BLOCK), inputs.row_length])
    attend = TickAttention(inputs, slots, bucket, page_size, implementation)
    hidden, pages = decoder(tokens, positions, pages, attend, lengths)

    sampled = jnp.concatenate([hidden[inputs.sample_index], hidden[bucket.prefill_tokens :]])
    slots, new_tokens, scores = _next_tokens(decoder, sampled, slots, inputs, row_length, max_logprobs, processor)
    outputs = TickOutputs(
        tokens=new_tokens,
        scores=scores,
        prompt_scores=score_prompt(
            hidden[: bucket.prefill_tokens],
            inputs.targets,
            decoder.logits_by_token,
            max_logprobs,
            decoder.implementation,
            decoder.shard.anywhere,
        ),
        sums=sum_states(hidden[: bucket.prefill_tokens], inputs.sum_first, inputs.sum_count),
    )
    return pages, slots, outputs


def _with_plan(slots: Slots, inputs: TickInputs[jax.Array], row_length: jax.Array, page_size: int) -> Slots:
    """Return the slots with the page tables and the sampling parameters of the plan.

    Args:
        row_length: (decode_rows,) int32, the positions of each decode row that are in the pages.
    """
    page_table = slots.page_table.at[inputs.chunk_slot].set(inputs.chunk_table)
    page_table = page_table.at[inputs.row_slot, row_length // page_size].set(inputs.row_page)
    parameters = slots.sampling.at[inputs.sample_slot].set(inputs.sample_params)
    return replace(slots, page_table=page_table, sampling=parameters)


def _next_tokens(
    decoder: Decoder,
    hidden: jax.Array,
    slots: Slots,
    inputs: TickInputs[jax.Array],
    row_length: jax.Array,
    max_logprobs: int,
    processor: LogitsProcessor | None,
) -> tuple[Slots, jax.Array, jax.Array]:
    """Sample the next token of each completed prompt and of each decode row, and enter it into their slots.

    Args:
        hidden: (samples + decode_rows, hidden), the states of their last tokens.
        row_length: see `_with_plan`.

    Returns:
        The slots, and `tokens` and `scores` of `TickOutputs`.
    """
    null_slot = len(slots.token) - 1
    owners = jnp.concatenate([inputs.sample_slot, inputs.row_slot])
    lengths = jnp.concatenate([inputs.sample_length, row_length + 1])
    rows, columns = SamplingRows.unpack(slots.sampling[owners]), decoder.logits_by_token(hidden)
    tokens, scores = sample(
        columns,
        rows,
        lengths,
        slots.adjustments,
        owners,
        max_logprobs,
        processor,
        decoder.implementation,
        slots.allowed,
    )
    entered = jnp.maximum(tokens, 0)  # a tick that is in flight already goes on from any token
    slots = replace(
        slots,
        token=slots.token.at[owners].set(entered),
        length=slots.length.at[owners].set(lengths).at[null_slot].set(0),
        adjustments=record_tokens(slots.adjustments, owners, entered),
    )
    return slots, tokens, scores


@dataclass(frozen=True, slots=True)
class TickAttention:
    """The `Attend` of one tick: prefill blocks and decode rows each have their own kernel calls."""

    inputs: TickInputs[jax.Array]
    slots: Slots
    bucket: Bucket
    page_size: int
    implementation: kernels.Implementation | None

    def __call__(
        self, q: jax.Array, kv: jax.Array, pages: jax.Array, scores: ScoreOptions
    ) -> tuple[jax.Array, jax.Array]:
        tokens, how = self.bucket.prefill_tokens, scores.options() | {"implementation": self.implementation}
        null_slot = len(self.slots.token) - 1
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
            out = kernels.attend_blocks(block_q, pages, table, owners, starts, **how)
            outputs.append(out.reshape(tokens, *q.shape[1:]))
        if self.bucket.decode_rows:
            table = self.slots.page_table[self.inputs.row_slot]
            visible = jnp.where(self.inputs.row_slot == null_slot, 0, self.slots.length[self.inputs.row_slot] + 1)
            out = kernels.attend_rows(q[tokens:], pages, table, visible, **how)
            outputs.append(out)
        return jnp.concatenate(outputs), pages
