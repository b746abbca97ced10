"""One tick on the device: a pure function from pages, slots and a packed plan to pages, slots and the next tokens."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from rekindle.buckets import QUERY_BLOCK, Bucket
from rekindle.device.inputs import InputLayout, TickInputs
from rekindle.device.sampling.adjustments import record_tokens
from rekindle.device.sampling.processing import LogitsProcessor
from rekindle.device.sampling.rows import SamplingRows
from rekindle.device.sampling.sample import sample
from rekindle.device.sampling.scores import score_prompt
from rekindle.device.state import Pages, Slots
from rekindle.device.sums import sum_states
from rekindle.models.attention import Scores
from rekindle.models.decoder import Decoder
from rekindle_kernels import api as kernels


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class TickOutputs:
    """The outputs of a tick that the host reads. Scores are packed as by `scores.score`; unwanted ones are zeros.

    Attributes:
        tokens: (samples + decode_rows,) int32, first of the completed prompts, then of the decode rows.
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
    null_slot = len(slots.token) - 1
    inputs = InputLayout.of(bucket, slots).unpack(packed)
    page_size = pages[0].shape[3]
    row_length = slots.length[inputs.row_slot]
    page_table = slots.page_table.at[inputs.chunk_slot].set(inputs.chunk_table)
    page_table = page_table.at[inputs.row_slot, row_length // page_size].set(inputs.row_page)
    parameters = slots.sampling.at[inputs.sample_slot].set(inputs.sample_params)
    slots = replace(slots, page_table=page_table, sampling=parameters)

    block_positions = inputs.block_start[:, None] + jnp.arange(QUERY_BLOCK, dtype=jnp.int32)[None]
    tokens = jnp.concatenate([inputs.tokens, slots.token[inputs.row_slot]])
    positions = jnp.concatenate([block_positions.reshape(-1), row_length])
    lengths = jnp.concatenate([jnp.repeat(inputs.block_length, QUERY_BLOCK), inputs.row_length])
    attend = TickAttention(inputs, slots, bucket, page_size, implementation)
    hidden, pages = decoder(tokens, positions, pages, attend, lengths)

    sampled = jnp.concatenate([hidden[inputs.sample_index], hidden[bucket.prefill_tokens :]])
    owners = jnp.concatenate([inputs.sample_slot, inputs.row_slot])
    lengths = jnp.concatenate([inputs.sample_length, row_length + 1])
    rows, columns = SamplingRows.unpack(parameters[owners]), decoder.logits_by_token(sampled)
    new_tokens, scores = sample(
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
    slots = replace(
        slots,
        token=slots.token.at[owners].set(new_tokens),
        length=slots.length.at[owners].set(lengths).at[null_slot].set(0),
        adjustments=record_tokens(slots.adjustments, owners, new_tokens),
    )
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


@dataclass(frozen=True, slots=True)
class TickAttention:
    """The `Attend` of one tick: prefill blocks and decode rows each have their own kernel calls."""

    inputs: TickInputs[jax.Array]
    slots: Slots
    bucket: Bucket
    page_size: int
    implementation: kernels.Implementation | None

    def __call__(self, q: jax.Array, kv: jax.Array, pages: jax.Array, scores: Scores) -> tuple[jax.Array, jax.Array]:
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
