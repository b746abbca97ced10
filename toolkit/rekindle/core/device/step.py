"""The step: a pure function from pages, slots and a packed plan to pages, slots and the next tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from rekindle.core.buckets import MAX_STEPS, QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import InputLayout, TickInputs
from rekindle.core.device.outputs import NOT_COMPUTED, TickOutputs
from rekindle.core.device.proposing import propose
from rekindle.core.device.sampling.adjustments import record_tokens
from rekindle.core.device.sampling.drafts import verify
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.sampling.rows import SamplingRows
from rekindle.core.device.sampling.sample import sample
from rekindle.core.device.sampling.scores import score_columns, score_prompt
from rekindle.core.device.state import Pages, Slots
from rekindle.core.device.tick_mixer import TickMixer, group_ends_of
from rekindle.core.models.adapters.rows import AdapterDelta, Adapters
from rekindle.core.models.decoder import Decoder
from rekindle.core.models.mixing import LayerMemory
from rekindle.core.models.states.windows import settle_states
from rekindle.core.models.taps.interventions import Interventions, RowInterventions
from rekindle.core.models.vision.embedded import Embedded
from rekindle.core.page import NULL_PAGE
from rekindle_kernels.loops import read_in_place

UNROLLED = 8
"""Tokens of each sum in one iteration."""


def sum_states(hidden: jax.Array, first: jax.Array, count: jax.Array) -> jax.Array:
    """Add up the hidden states of some tokens for each of several chunks.

    Args:
        hidden: (tokens, hidden) float32.
        first: (chunks,) int32, the index of the first token of each sum.
        count: (chunks,) int32, the number of its tokens; 0 for no sum.

    Returns:
        (chunks, hidden) float32, zeros where the count is 0. The sum of one token equals its hidden state bit for bit,
        and no sum depends on the other tokens and chunks.
    """

    def sums() -> jax.Array:
        def add(block: jax.Array, total: jax.Array) -> jax.Array:
            for offset in range(UNROLLED):  # a reduction would add up in an order of its shape
                place = block * UNROLLED + offset
                rows = hidden[jnp.minimum(first + place, len(hidden) - 1)]
                total = total + jnp.where((place < count)[:, None], rows, 0)  # padding may hold any values
            return total

        total: jax.Array = lax.fori_loop(0, -(-count.max() // UNROLLED), add, zeros)
        return total

    zeros = jnp.zeros((len(first), hidden.shape[1]), jnp.float32)
    if not len(hidden):
        return zeros
    result: jax.Array = lax.cond((count > 0).any(), sums, lambda: zeros)
    return result


def step(
    decoder: Decoder,
    pages: Pages,
    slots: Slots,
    packed: jax.Array,
    bucket: Bucket,
    max_logprobs: int,
    processor: LogitsProcessor | None = None,
    adapters: Adapters | None = None,
    interventions: Interventions | None = None,
    embeddings: jax.Array | None = None,
) -> tuple[Pages, Slots, TickOutputs]:
    """Run one tick: prefill blocks and decode rows through the decoder, then sample.

    Without prompt tokens, a tick runs as many decode steps as the plan says, at most `MAX_STEPS`. Their number is an
    input, so it changes no token.

    Args:
        pages, slots: the device state, donated by the caller.
        packed: (size,) int32, the `TickInputs` in the layout of `InputLayout`.
        bucket: the padded shape, static.
        max_logprobs: the number of likeliest tokens in a score, static.
        processor: the logits processor, static.
        adapters: the adapters, for a bucket with adapters.
        interventions: those of all slots, for a steered bucket.
        embeddings: (rows, hidden) float32, of images, for a bucket with images.

    Returns:
        Pages and slots after the tick, and the outputs for the host.
    """
    inputs = InputLayout.of(bucket, slots).unpack(packed)
    slots = _with_plan(slots, inputs, pages[0].shape[3])
    one_step = partial(
        _tick,
        bucket=bucket,
        max_logprobs=max_logprobs,
        processor=processor,
        interventions=interventions,
        embeddings=embeddings,
    )
    if bucket.prefill_tokens:
        pages, slots, outputs = one_step(decoder, adapters, pages, slots, inputs)
        return pages, slots, replace(outputs, tokens=outputs.tokens[:, None], scores=outputs.scores[:, None])
    columns, proposes = score_columns(max_logprobs), bucket.proposes
    return _decode_steps(one_step, decoder, adapters, pages, slots, inputs, columns, proposes=proposes)


def _tick(
    decoder: Decoder,
    adapters: Adapters | None,
    pages: Pages,
    slots: Slots,
    inputs: TickInputs[jax.Array],
    *,
    bucket: Bucket,
    max_logprobs: int,
    processor: LogitsProcessor | None,
    interventions: Interventions | None,
    embeddings: jax.Array | None,
) -> tuple[Pages, Slots, TickOutputs]:
    """Run one tick, or one of its decode steps, after `_with_plan`; `tokens` and `scores` have no axis of row tokens.

    Args:
        decoder: the decoder, made for this trace; its products get the adapters.
        interventions: the changes of activations in all slots; None without any.
        embeddings: the embeddings of images; None in a bucket without.
    """
    delta = None
    if adapters is not None:
        of_tokens = jnp.concatenate([jnp.repeat(inputs.block_adapter, QUERY_BLOCK), inputs.row_adapter])
        delta = adapters.adapt(decoder, of_tokens, (bucket.prefill_tokens, bucket.decode_rows))
    page_size = pages[0].shape[3]
    row_positions = inputs.row_positions(slots)
    block_positions = inputs.block_start[:, None] + jnp.arange(QUERY_BLOCK, dtype=jnp.int32)[None]
    tokens = jnp.concatenate([inputs.tokens, inputs.row_tokens(slots)])
    positions = jnp.concatenate([block_positions.reshape(-1), row_positions])
    lengths = jnp.concatenate([jnp.repeat(inputs.block_length, QUERY_BLOCK), inputs.row_length])
    places = inputs.places(positions) if bucket.coordinates else positions
    row_pages = slots.page_table.at[inputs.row_slot, row_positions // page_size].get(mode="fill", fill_value=NULL_PAGE)
    ends = _group_ends(decoder, inputs, bucket)
    mixer = TickMixer(inputs, slots, bucket, page_size, row_pages, decoder.implementation, ends)
    tap = None if interventions is None else _interventions(interventions, inputs, positions)
    pictures = None if embeddings is None else _embedded(embeddings, inputs, bucket.decode_rows)
    hidden, memory = decoder(tokens, places, LayerMemory(pages, slots.states), mixer, lengths, tap, pictures)
    pages, slots = memory.pages, replace(slots, states=memory.states)

    last_states = jnp.concatenate([hidden[inputs.sample_index], hidden[bucket.prefill_tokens :]])
    of_samples = None if delta is None else jnp.concatenate([inputs.sample_adapter, inputs.row_adapter])
    columns = _logits(decoder, delta, last_states, of_samples, len(inputs.sample_slot), bucket.decode_rows)
    slots, new_tokens, scores = _next_tokens(
        decoder,
        columns,
        slots,
        inputs,
        row_positions,
        max_logprobs,
        processor,
        windows=bucket.windows and bucket.decode_rows > 0,
    )
    proposals = None
    if bucket.proposes:
        null_slot = len(slots.token) - 1
        memory, proposals = propose(decoder, memory, mixer, inputs, hidden, places, lengths, new_tokens, null_slot)
        pages = memory.pages
    outputs = TickOutputs(
        tokens=new_tokens,
        scores=scores,
        prompt_scores=_prompt_scores(decoder, delta, hidden[: bucket.prefill_tokens], inputs, max_logprobs),
        sums=sum_states(hidden[: bucket.prefill_tokens], inputs.sum_first, inputs.sum_count),
        proposals=proposals,
        states=None if decoder.config.predicts else hidden[: bucket.prefill_tokens],
    )
    return pages, slots, outputs


def _group_ends(decoder: Decoder, inputs: TickInputs[jax.Array], bucket: Bucket) -> jax.Array | None:
    """Return the ends of groups of tokens that see one another; None in a tick without any."""
    config = decoder.config
    if not bucket.prefill_tokens or not (config.both_ways or (bucket.pictures and config.images_both_ways)):
        return None
    return group_ends_of(inputs, whole_texts=config.both_ways)


def _logits(
    decoder: Decoder, delta: AdapterDelta | None, hidden: jax.Array, of_rows: jax.Array | None, *parts: int
) -> jax.Array:
    """Return the logits of hidden states, with the summands of the adapters of their rows."""
    return decoder.logits_by_token(hidden, None if delta is None or of_rows is None else delta.of(of_rows, parts))


def _prompt_scores(
    decoder: Decoder, delta: AdapterDelta | None, hidden: jax.Array, inputs: TickInputs[jax.Array], max_logprobs: int
) -> jax.Array:
    """Return the scores of the prompts' next tokens."""
    return score_prompt(
        hidden,
        inputs.targets,
        lambda hidden, of_rows: _logits(decoder, delta, hidden, of_rows, len(hidden)),
        max_logprobs,
        decoder.implementation,
        decoder.shard.anywhere,
        None if delta is None else delta.slots[: len(hidden)],
    )


def _interventions(
    interventions: Interventions, inputs: TickInputs[jax.Array], positions: jax.Array
) -> RowInterventions:
    """Return the changes of activations for each token of a tick."""
    of_rows = jnp.concatenate([jnp.repeat(inputs.block_slot, QUERY_BLOCK), inputs.row_slot])
    return RowInterventions(interventions, of_rows, positions)


def _embedded(embeddings: jax.Array, inputs: TickInputs[jax.Array], decode_rows: int) -> Embedded:
    """Return the embeddings of images for the tokens of a tick; decode rows have none."""
    of_rows = jnp.full(decode_rows, -1, jnp.int32)
    return Embedded(embeddings, jnp.concatenate([inputs.embedded, of_rows]))


def _decode_steps(
    one_step: Callable[..., tuple[Pages, Slots, TickOutputs]],
    decoder: Decoder,
    adapters: Adapters | None,
    pages: Pages,
    slots: Slots,
    inputs: TickInputs[jax.Array],
    columns: int,
    *,
    proposes: bool,
) -> tuple[Pages, Slots, TickOutputs]:
    """Run decode steps until each row has reached its number of tokens, an end token, or an error.

    A row that has is padding in later steps. One that has ended in an earlier tick is padding from the first step on.

    All devices of the program run the same steps.

    Args:
        one_step: `_tick` with the further arguments.
        columns: the width of a packed score.
        proposes: whether the steps guess the token after the new one.

    Returns:
        Pages, slots, and the outputs of all steps.
    """
    rows, null_slot, (graph, weights) = len(inputs.row_slot), len(slots.token) - 1, nnx.split(decoder)
    ends = SamplingRows.unpack(slots.sampling[inputs.row_slot])
    start = TickOutputs(
        tokens=jnp.full((rows, MAX_STEPS), NOT_COMPUTED, jnp.int32),
        scores=jnp.zeros((rows, MAX_STEPS, columns), jnp.int32),
        prompt_scores=jnp.zeros((0, columns), jnp.int32),
        sums=jnp.zeros((0, decoder.config.hidden_size), jnp.float32),
        proposals=jnp.zeros(rows, jnp.int32) if proposes else None,
    )

    def continues(state: Any) -> jax.Array:
        step, live, *_ = state
        more: jax.Array = (step < MAX_STEPS) & decoder.shard.anywhere(live).any()
        return more

    def body(state: Any) -> Any:
        step, live, pages, slots, outputs = state
        slot, offset = jnp.where(live, inputs.row_slot, null_slot), jnp.where(live, inputs.row_offset, 0)
        shared = (weights, None if adapters is None else adapters.stacks)
        own, stacks = read_in_place(shared, step, decoder.implementation)
        of_step = None if adapters is None else replace(adapters, stacks=stacks)
        step_inputs = replace(inputs, row_slot=slot, row_offset=offset)
        pages, slots, new = one_step(nnx.merge(graph, own), of_step, pages, slots, step_inputs)
        proposals = new.proposals
        if proposals is not None and outputs.proposals is not None:
            proposals = jnp.where(live, proposals, outputs.proposals)
        outputs = replace(
            outputs,
            tokens=outputs.tokens.at[:, step].set(jnp.where(live, new.tokens, NOT_COMPUTED)),
            scores=outputs.scores.at[:, step].set(new.scores),
            proposals=proposals,
        )
        goes_on = (new.tokens >= 0) & ~ends.is_end(new.tokens) & (step + 1 < inputs.row_steps)
        return step + 1, live & goes_on, pages, slots, outputs

    live = (inputs.row_steps > 0) & ~ends.is_end(slots.token[inputs.row_slot])
    _, _, pages, slots, outputs = lax.while_loop(continues, body, (jnp.int32(0), live, pages, slots, start))
    return pages, slots, outputs


def _with_plan(slots: Slots, inputs: TickInputs[jax.Array], page_size: int) -> Slots:
    """Return the slots with the page tables and the sampling parameters of the plan."""
    page_table = slots.page_table.at[inputs.chunk_slot].set(inputs.chunk_table)
    places = (inputs.row_positions(slots) // page_size)[:, None] + jnp.arange(2, dtype=jnp.int32)[None]
    # jax drops places beyond the end of the table
    places = jnp.where(inputs.row_pages == NULL_PAGE, page_table.shape[1], places)
    page_table = page_table.at[inputs.row_slot[:, None], places].set(inputs.row_pages)
    parameters = slots.sampling.at[inputs.sample_slot].set(inputs.sample_params)
    return replace(slots, page_table=page_table, sampling=parameters)


def _next_tokens(
    decoder: Decoder,
    columns: jax.Array,
    slots: Slots,
    inputs: TickInputs[jax.Array],
    row_positions: jax.Array,
    max_logprobs: int,
    processor: LogitsProcessor | None,
    *,
    windows: bool,
) -> tuple[Slots, jax.Array, jax.Array]:
    """Sample the next token of each completed prompt and of each decode row, and write the newest into their slots.

    Args:
        columns: (vocabulary, samples + decode_rows) float32, the logits of their last tokens.
        row_positions: (decode_rows,) int32, the position of each decode row's token.
        windows: whether the states have room for those of decode rows.

    Returns:
        The slots, and `tokens` and `scores` of `TickOutputs`.
    """
    null_slot = len(slots.token) - 1
    owners = jnp.concatenate([inputs.sample_slot, inputs.row_slot])
    lengths = jnp.concatenate([inputs.sample_length, row_positions + 1])
    rows = SamplingRows.unpack(slots.sampling[owners])
    if decoder.config.predicts:
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
            jnp.concatenate([inputs.sample_slot, inputs.row_masks(null_slot)]),
        )
    else:
        tokens = jnp.zeros_like(owners)
        scores = jnp.zeros((len(owners), score_columns(max_logprobs)), jnp.int32)
    of_samples, of_rows = jnp.split(tokens, [len(inputs.sample_slot)])
    is_right, is_last = verify(inputs.row_offset, inputs.row_draft, of_rows)
    tokens = jnp.concatenate([of_samples, jnp.where(is_right, of_rows, NOT_COMPUTED)])
    owners = jnp.concatenate([inputs.sample_slot, jnp.where(is_last, inputs.row_slot, null_slot)])
    next_tokens = jnp.maximum(tokens, 0)  # the next tick may be in flight already, and needs a valid token
    slots = replace(
        slots,
        token=slots.token.at[owners].set(next_tokens),
        length=slots.length.at[owners].set(lengths).at[null_slot].set(0),
        adjustments=record_tokens(slots.adjustments, owners, next_tokens),
        states=settle_states(slots.states, inputs.row_slot, inputs.row_offset, is_last, null_slot)
        if windows
        else slots.states,
    )
    return slots, tokens, scores
