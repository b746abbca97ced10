"""The host's side of a tick: packing plans and requests into arrays, and unpacking outputs."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rekindle.buckets import MAX_BAD_WORD_TOKENS, QUERY_BLOCK, Bucket
from rekindle.device.inputs import InputLayout, samples_of
from rekindle.device.sampling.adjustments import RECENT, PackedSlot, no_adjustments
from rekindle.device.sampling.rows import ADJUSTED, COLUMNS, FLOATS, OF_MODEL, OF_SAMPLED, PROCESSED
from rekindle.device.step import TickOutputs
from rekindle.messages import Dispatched, Plan, Sampled, Scored
from rekindle.request import Request, SamplingParams
from rekindle.results.tokens import TokenLogprob
from rekindle_kernels.penalties import END, GENERATED, IN_PROMPT

Array = np.ndarray[Any, np.dtype[np.int32]]


def pack_plan(plan: Plan, layout: InputLayout) -> Array:
    """Pack a plan into the array that the step takes: a new one, because the device may still read the last one."""
    packed = layout.padding()
    inputs = layout.unpack(packed)
    block = sample = 0
    for place, chunk in enumerate(plan.chunks):
        end, first = block + len(chunk.pages), block * QUERY_BLOCK
        inputs.tokens[first : first + len(chunk.tokens)] = chunk.tokens
        inputs.block_slot[block:end] = chunk.slot
        inputs.block_start[block:end] = range(chunk.start, chunk.start + len(chunk.tokens), QUERY_BLOCK)
        inputs.block_page[block:end] = chunk.pages
        inputs.block_length[block:end] = chunk.length
        inputs.chunk_slot[place], inputs.chunk_table[place, : len(chunk.table)] = chunk.slot, chunk.table
        if chunk.scoring is not None:
            targets = first + chunk.scoring.first
            inputs.targets[targets : targets + len(chunk.scoring.tokens)] = chunk.scoring.tokens
        if chunk.completes is not None:
            inputs.sample_index[sample] = first + len(chunk.tokens) - 1
            inputs.sample_slot[sample] = chunk.slot
            inputs.sample_length[sample] = chunk.start + len(chunk.tokens)
            inputs.sample_params[sample] = pack_sampling(chunk.completes)
            sample += 1
        block = end
    if plan.rows:
        inputs.row_slot[: len(plan.rows)] = [row.slot for row in plan.rows]
        inputs.row_page[: len(plan.rows)] = [row.page for row in plan.rows]
        inputs.row_length[: len(plan.rows)] = [row.length for row in plan.rows]
    return packed


def pack_sampling(request: Request) -> Array:
    """Pack a request's row of `SamplingRows` into (COLUMNS,) int32, which holds the bits of the floats."""
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
    of_what = OF_SAMPLED if params.logprobs_of == "sampled" else OF_MODEL
    scored = 0 if params.logprobs is None else of_what
    row[len(FLOATS) :] = params.top_k, seed_low, seed_high, free_from, _adjusted(params), scored
    return row


def _adjusted(params: SamplingParams) -> int:
    if params.processor_args is not None:
        return PROCESSED
    return ADJUSTED if params.adjusts else 0


def pack_adjustments(request: Request, generated: Sequence[int], vocabulary: int) -> Array:
    """Pack a request's rows of `Adjustments` into one int32 array for `enter_slot`.

    Args:
        generated: the tokens that the request generated before it was preempted.
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


def dispatched(plan: Plan, bucket: Bucket, max_running: int, outputs: TickOutputs) -> Dispatched:
    """Return which requests a tick in this bucket samples and scores, and where in its outputs their results are."""
    sampled: list[Sampled] = []
    scored: list[Scored] = []
    first_token = 0
    for chunk in plan.chunks:
        if (request := chunk.completes) is not None:
            sampled.append(Sampled(chunk.request_id, len(sampled), request.params.logprobs))
        if chunk.scoring is not None:
            scored.append(Scored(chunk.request_id, first_token + chunk.scoring.first, chunk.scoring))
        first_token += len(chunk.pages) * QUERY_BLOCK
    first_row = samples_of(bucket, max_running)
    sampled += [Sampled(row.request_id, at, row.logprobs) for at, row in enumerate(plan.rows, first_row)]
    return Dispatched(plan.tick, tuple(sampled), tuple(scored), outputs, plan.losses)


def unpack_score(row: np.ndarray[Any, np.dtype[np.int32]], token: int, alternatives: int) -> TokenLogprob:
    """Turn a packed score into a `TokenLogprob`, still without texts.

    Args:
        row: (columns,) int32, as `scores.score` packs it.
        alternatives: how many of the likeliest tokens to return, or fewer, where fewer are possible.
    """
    most = (len(row) - 2) // 2
    ids, values = row[2 : 2 + alternatives].tolist(), row[2 + most :].view(np.float32)[:alternatives].tolist()
    known = [pair for pair in zip(ids, values, strict=True) if pair[1] > -math.inf]
    top = tuple(TokenLogprob(i, "", value, rank) for rank, (i, value) in enumerate(known, 1))
    return TokenLogprob(token, "", row[:1].view(np.float32).item(), int(row[1]), top)
