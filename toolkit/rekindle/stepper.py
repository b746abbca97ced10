"""The two actors at the device: the stepper dispatches plans, the settler reads their tokens back."""

from typing import Any

import jax
import numpy as np
from anyio import to_thread

from rekindle import buckets
from rekindle.buckets import QUERY_BLOCK, Bucket
from rekindle.config import Limits
from rekindle.executables import Executables
from rekindle.messages import Dispatched, Message, Plan, Settled
from rekindle.step import Pages, Slots, blank_inputs, samples_of, split_inputs


class Stepper:
    """Owns the device state and puts plans to the device in order, without waiting for their results."""

    def __init__(self, executables: Executables, pages: Pages, slots: Slots, limits: Limits):
        self._executables = executables
        self._pages = pages
        self._slots = slots
        self._limits = limits

    async def handle(self, message: Message) -> list[Message]:
        """Plan becomes Dispatched. A bucket that is not compiled yet is compiled in a worker thread."""
        if not isinstance(message, Plan):
            raise TypeError(f"the stepper takes Plan, got {message!r}")
        bucket = self._bucket(message)
        program = self._executables.find(bucket)
        if program is None:
            program = await to_thread.run_sync(self._executables.compile, bucket, abandon_on_cancel=True)
        packed = pack(message, bucket, self._limits.max_running)
        self._pages, self._slots, tokens = program(self._executables.weights, self._pages, self._slots, packed)
        tokens.copy_to_host_async()
        completed = [chunk.request_id for chunk in message.chunks if chunk.params is not None]
        first_row = samples_of(bucket, self._limits.max_running)
        sampled = [*enumerate(completed), *enumerate((row.request_id for row in message.rows), first_row)]
        return [Dispatched(message.tick, tuple((request_id, at) for at, request_id in sampled), tokens)]

    def free(self) -> None:
        """Delete the device state and the weights."""
        for array in jax.tree.leaves((self._pages, self._slots, self._executables.weights)):
            array.delete()

    def _bucket(self, plan: Plan) -> Bucket:
        blocks = sum(len(chunk.pages) for chunk in plan.chunks)
        return Bucket(
            buckets.smallest(self._limits.prefill_buckets, blocks * QUERY_BLOCK),
            buckets.smallest(self._limits.decode_buckets, len(plan.rows)),
        )


class Settler:
    """Waits for each tick's tokens, in order, in a worker thread."""

    async def handle(self, message: Message) -> list[Message]:
        """Dispatched becomes Settled."""
        if not isinstance(message, Dispatched):
            raise TypeError(f"the settler takes Dispatched, got {message!r}")
        tokens = (await to_thread.run_sync(np.asarray, message.tokens, abandon_on_cancel=True)).tolist()
        return [Settled(message.tick, tuple((request_id, tokens[at]) for request_id, at in message.sampled))]


def pack(plan: Plan, bucket: Bucket, max_running: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """A plan as the one array that the step takes. It is new for each tick: the device may still read the last one."""
    packed = blank_inputs(bucket, max_running)
    inputs = split_inputs(packed, bucket, max_running)
    block = sample = 0
    for chunk in plan.chunks:
        end, first = block + len(chunk.pages), block * QUERY_BLOCK
        inputs.tokens[first : first + len(chunk.tokens)] = chunk.tokens
        inputs.block_slot[block:end] = chunk.slot
        inputs.block_start[block:end] = range(chunk.start, chunk.start + len(chunk.tokens), QUERY_BLOCK)
        inputs.block_page[block:end] = chunk.pages
        if (params := chunk.params) is not None:
            inputs.sample_index[sample] = first + len(chunk.tokens) - 1
            inputs.sample_slot[sample] = chunk.slot
            inputs.sample_length[sample] = chunk.start + len(chunk.tokens)
            inputs.top_k[sample], inputs.seed[sample] = params.top_k, params.seed or 0
            inputs.temperature[sample] = params.temperature
            inputs.top_p[sample], inputs.min_p[sample] = params.top_p, params.min_p
            sample += 1
        block = end
    if plan.rows:
        inputs.row_slot[: len(plan.rows)] = [row.slot for row in plan.rows]
        inputs.row_page[: len(plan.rows)] = [row.page for row in plan.rows]
    return packed
