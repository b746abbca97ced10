"""Host side of a tick: packing plans and requests into arrays, and unpacking outputs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle.core.buckets import MAX_BAD_WORD_TOKENS, MAX_END_IDS, QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import NO_ADAPTER, InputLayout, samples_of
from rekindle.core.device.sampling.adjustments import RECENT, PackedSlot, no_adjustments
from rekindle.core.device.sampling.constraints import MASKS_PER_CALL, no_masks
from rekindle.core.device.sampling.rows import ADJUSTED, COLUMNS, CONSTRAINED, FLOATS, PROCESSED, SOURCES
from rekindle.core.layer_parts import PARTS
from rekindle.core.messages import Chunk, Dispatched, Plan, Row, SampleRow, ScoreRow, SumRow
from rekindle.core.models.taps.interventions import Interventions
from rekindle.core.page import NULL_PAGE
from rekindle.core.request.activations.changes import Changes
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import Request
from rekindle.core.request.tokens import TokenLogprob
from rekindle_kernels.penalties import END, GENERATED, IN_PROMPT

Array = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class GroupPart:
    """The part of a plan for one group of devices.

    Attributes:
        chunks, rows: the prompt chunks and decode rows.
        first_slot, first_page: the offset of the group's slots and pages among those of all groups.
    """

    chunks: Sequence[Chunk]
    rows: Sequence[Row]
    first_slot: int = 0
    first_page: int = 0

    @property
    def blocks(self) -> int:
        """The number of query blocks of its chunks."""
        return sum(len(chunk.pages) for chunk in self.chunks)


def parts_of(plan: Plan, groups: int, slots: int, pages: int) -> list[GroupPart]:
    """Split a plan into one part for each group, with chunks and rows in the order of their adapters.

    Args:
        slots, pages: the number of slots and of pages in a group.
    """
    chunks, rows = plan.chunks, plan.rows
    if plan.adapted:
        chunks, rows = tuple(sorted(chunks, key=_adapter_of)), tuple(sorted(rows, key=_adapter_of))
    if groups == 1:
        return [GroupPart(chunks, rows)]
    return [
        GroupPart(
            [chunk for chunk in chunks if chunk.slot // slots == group],
            [row for row in rows if row.slot // slots == group],
            group * slots,
            group * pages,
        )
        for group in range(groups)
    ]


def _adapter_of(item: Chunk | Row) -> int:
    return NO_ADAPTER if item.adapter is None else item.adapter


def pack_plan(parts: Sequence[GroupPart], layout: InputLayout) -> Array:
    """Pack a plan into a new input array for the step: the device may still be reading the previous one."""
    packed = [_pack(part, layout) for part in parts]
    return packed[0] if len(packed) == 1 else np.concatenate(packed)


def _pack(part: GroupPart, layout: InputLayout) -> Array:
    packed = layout.padding()
    inputs = layout.unpack(packed)
    block = sample = 0
    for index, chunk in enumerate(part.chunks):
        end, first = block + len(chunk.pages), block * QUERY_BLOCK
        inputs.tokens[first : first + len(chunk.tokens)] = chunk.tokens
        if chunk.embedded is not None:
            inputs.embedded[first : first + len(chunk.tokens)] = chunk.embedded
        if inputs.coordinates.size:
            coordinates = range(chunk.start, chunk.start + len(chunk.tokens))
            of_chunk = inputs.coordinates[:, first : first + len(chunk.tokens)]
            of_chunk[:] = coordinates if chunk.coordinates is None else chunk.coordinates
        if layout.bucket.proposes:
            inputs.following[first : first + len(chunk.tokens)] = (*chunk.tokens[1:], chunk.following)
        slot = chunk.slot - part.first_slot
        inputs.block_slot[block:end] = slot
        inputs.block_start[block:end] = range(chunk.start, chunk.start + len(chunk.tokens), QUERY_BLOCK)
        inputs.block_page[block:end] = np.maximum(np.subtract(chunk.pages, part.first_page), NULL_PAGE)
        inputs.block_count[block:end] = QUERY_BLOCK
        inputs.block_count[end - 1] = len(chunk.tokens) - (end - 1 - block) * QUERY_BLOCK
        inputs.block_length[block:end] = chunk.length
        inputs.block_adapter[block:end] = _adapter_of(chunk)
        inputs.chunk_slot[index] = slot
        inputs.chunk_table[index, : len(chunk.table)] = np.subtract(chunk.table, part.first_page)
        if chunk.scoring is not None:
            targets = first + chunk.scoring.first
            inputs.targets[targets : targets + len(chunk.scoring.tokens)] = chunk.scoring.tokens
        if chunk.summing is not None and not chunk.summing.apart:
            inputs.sum_first[index] = first + chunk.summing.first
            inputs.sum_count[index] = chunk.summing.count
        if chunk.completes is not None:
            inputs.sample_index[sample] = first + len(chunk.tokens) - 1
            inputs.sample_slot[sample] = slot
            inputs.sample_length[sample] = chunk.start + len(chunk.tokens)
            inputs.sample_params[sample] = pack_sampling(chunk.completes, constrained=chunk.allowed is not None)
            inputs.sample_adapter[sample : sample + 1] = _adapter_of(chunk)
            sample += 1
        block = end
    if count := len(part.rows):
        inputs.row_slot[:count] = [row.slot - part.first_slot for row in part.rows]
        inputs.row_length[:count] = [row.length for row in part.rows]
        inputs.row_offset[:count] = [row.offset for row in part.rows]
        inputs.row_draft[:count] = [row.draft for row in part.rows]
        if layout.bucket.adapters:
            inputs.row_adapter[:count] = [_adapter_of(row) for row in part.rows]
        if layout.bucket.coordinates:
            inputs.row_shift[:count] = [row.shift for row in part.rows]
        pages = [(row.page, row.next_page) for row in part.rows]
        inputs.row_pages[:count] = np.maximum(np.subtract(pages, part.first_page), NULL_PAGE)
        inputs.row_steps[:count] = [row.steps for row in part.rows]
    return packed


def pack_sampling(request: Request, *, constrained: bool = False) -> Array:
    """Pack a request's row of `SamplingRows` into (COLUMNS,) int32, with floats as their bits."""
    params = request.params
    row = np.zeros(COLUMNS, np.int32)
    row[: len(FLOATS)].view(np.float32)[:] = (
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
    )
    seed_low, seed_high = np.array([params.seed or 0], "<u8").view("<i4")
    free_from = len(request.prompt) + params.min_tokens
    logprobs_of = 0 if params.logprobs is None else SOURCES[params.logprobs_of]
    whole = params.top_k, seed_low, seed_high, free_from, _change_bits(params, constrained), logprobs_of
    row[len(FLOATS) : -MAX_END_IDS] = whole
    ends = sorted(request.end_ids)[:MAX_END_IDS]
    row[-MAX_END_IDS:][: len(ends)] = [end + 1 for end in ends]
    return row


def masks_of(parts: Sequence[GroupPart], max_running: int) -> Iterator[tuple[Array, Array]]:
    """Yield batches of places in `Slots.allowed` and their masks, as arguments of the ALLOW program.

    The places of a group follow those of the groups before it.

    Args:
        parts: the parts of a plan.
        max_running: the number of slots in a group.
    """
    masks = [mask for group, part in enumerate(parts) for mask in _masks(part, group, max_running)]
    for first in range(0, len(masks), MASKS_PER_CALL):
        batch = masks[first : first + MASKS_PER_CALL]
        places, bits = no_masks(len(batch[0][1]), max_running)
        places[: len(batch)] = [place for place, _ in batch]
        bits[: len(batch)] = [allowed for _, allowed in batch]
        yield places, bits


def _masks(part: GroupPart, group: int, max_running: int) -> Iterator[tuple[int, Any]]:
    """Yield the place and the mask of each chunk and row with one."""
    null_slot, first = max_running, group * (2 * max_running + 1)
    for chunk in part.chunks:
        if chunk.allowed is not None:
            yield first + chunk.slot - part.first_slot, chunk.allowed
    for place, row in enumerate(part.rows):
        if row.allowed is not None:
            yield first + (null_slot + 1 + place if row.offset else row.slot - part.first_slot), row.allowed


def _change_bits(params: SamplingParams, constrained: bool) -> int:
    adjustments = ADJUSTED if params.adjusts else 0
    processor = PROCESSED if params.processor_args is not None else 0
    return adjustments | processor | (CONSTRAINED if constrained else 0)


def pack_adjustments(request: Request, generated: Sequence[int], vocabulary: int) -> Array:
    """Pack a request's rows of `Adjustments` into one int32 array for `enter_slot`.

    Args:
        generated: the request's tokens generated before a preemption.
    """
    packed = no_adjustments(vocabulary)
    slot, params = PackedSlot.of(packed, vocabulary), request.params
    bias = slot.bias.view(np.float32)
    if params.allowed_token_ids is not None:
        bias[:] = -np.inf
        bias[list(params.allowed_token_ids)] = 0
    for token, value in params.logit_bias:
        bias[token] += value
    for word in request.bad_words:
        if len(word) == 1:
            bias[word[0]] = -np.inf
    slot.marks[list(request.prompt)] |= IN_PROMPT
    slot.marks[list(request.end_ids)] |= END
    np.add.at(slot.marks, list(generated), GENERATED)
    newest = [*request.prompt, *generated][-RECENT:]
    slot.recent[RECENT - len(newest) :] = newest
    for row, word in zip(slot.bad_words, [word for word in request.bad_words if len(word) > 1], strict=False):
        row[MAX_BAD_WORD_TOKENS - len(word) :] = word
    args = params.processor_args or ()
    slot.processor_args.view(np.float32)[: len(args)] = args
    return packed


def pack_changes(changes: Changes | None, hidden: int) -> Interventions:
    """Pack the changes of one request as arrays of numpy, without an axis of slots.

    Args:
        changes: the changes; None for none.
        hidden: the size of the residual stream.
    """
    packed: Any = Interventions.none((), hidden)
    for place, change in enumerate(() if changes is None else changes.each):
        packed.layers[place], packed.parts[place] = change.layer, PARTS.index(change.part)
        packed.first[place], packed.end[place] = change.first, change.end
        packed.replaces[place], packed.vectors[place] = change.replaces, change.vector
    interventions: Interventions = packed
    return interventions


def describe_outputs(plan: Plan, parts: Sequence[GroupPart], bucket: Bucket, max_running: int) -> Dispatched:
    """Return the requests with outputs of a tick in this bucket, each with its indices into the arrays to come."""
    sample_rows, score_rows, sum_rows = list[SampleRow](), list[ScoreRow](), list[SumRow]()
    samples = samples_of(bucket, max_running)
    for group, part in enumerate(parts):
        first_token, first_sample = group * bucket.prefill_tokens, group * (samples + bucket.decode_rows)
        completing = [(chunk, chunk.completes) for chunk in part.chunks if chunk.completes is not None]
        for at, (chunk, request) in enumerate(completing, first_sample):
            sample_rows.append(SampleRow(chunk.request_id, at, request.params.logprobs))
        sample_rows += [
            SampleRow(row.request_id, at, row.logprobs, row.steps)
            for at, row in enumerate(part.rows, first_sample + samples)
        ]
        for index, chunk in enumerate(part.chunks, group * samples):
            if chunk.summing is not None:
                summing = chunk.summing
                row = first_token + summing.first if summing.apart else index
                sum_rows.append(SumRow(chunk.request_id, row, summing.count, summing.apart))
            if chunk.scoring is not None:
                score_rows.append(ScoreRow(chunk.request_id, first_token + chunk.scoring.first, chunk.scoring))
            first_token += len(chunk.pages) * QUERY_BLOCK
    return Dispatched(plan.tick, tuple(sample_rows), tuple(score_rows), None, plan.losses, tuple(sum_rows))


def unpack_score(row: np.ndarray[Any, np.dtype[np.int32]], token: int, alternatives: int) -> TokenLogprob:
    """Unpack a score into a `TokenLogprob`, without texts.

    Args:
        row: (columns,) int32, packed by `scores.score`.
        token: the id of the scored token.
        alternatives: the number of likeliest tokens to return; fewer if fewer have a probability.
    """
    max_logprobs = (len(row) - 2) // 2
    ids, values = row[2 : 2 + alternatives].tolist(), row[2 + max_logprobs :].view(np.float32)[:alternatives].tolist()
    possible = [pair for pair in zip(ids, values, strict=True) if pair[1] > -math.inf]
    top = tuple(TokenLogprob(i, "", value, rank) for rank, (i, value) in enumerate(possible, 1))
    return TokenLogprob(token, "", row[:1].view(np.float32).item(), int(row[1]), top)
