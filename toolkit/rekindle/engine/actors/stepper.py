"""The stepper actor: puts plans to the device."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from anyio import to_thread

from rekindle import buckets
from rekindle.buckets import QUERY_BLOCK, Bucket
from rekindle.device.inputs import InputLayout
from rekindle.device.jax_settings import under_own_settings
from rekindle.device.packing import Part, dispatched, pack_adjustments, pack_plan, parts_of
from rekindle.device.programs.executables import ArgumentsLost, Executables
from rekindle.device.programs.lowering import EMPTY, ENTER, GATHER, SCATTER
from rekindle.device.state import Pages, Slots
from rekindle.messages import Chunk, Dispatched, Gathered, Message, Offload, Onload, Plan, UseWeights, WeightsUsed
from rekindle.scheduler.limits import Limits


class Stepper:
    """The owner of the weights and the device state, which puts plans to the device without waiting for their results.

    Args:
        programs: the compiled programs.
        weights: the model's arrays, the first argument of every step.
        pages, slots: the state of an idle engine.
        limits: resolved settings.
    """

    def __init__(self, programs: Executables, weights: list[jax.Array], pages: Pages, slots: Slots, limits: Limits):
        self._programs = programs
        self._weights = weights
        self._pages = pages
        self._slots = slots
        self._limits = limits
        self._losses = 0  # of the device state

    async def handle(self, message: Message) -> list[Message]:
        """Turn Plan into Dispatched, Offload into Gathered, and UseWeights into WeightsUsed."""
        match message:
            case Plan():
                return [await self._dispatch(message)]
            case Offload():
                return [await self._gather(message)]
            case UseWeights(ticket, weights):
                old, self._weights = [self._weights], weights
                await to_thread.run_sync(old.clear)  # which may free gigabytes
                return [WeightsUsed(ticket)]
        raise TypeError(f"the stepper takes Plan, Offload and UseWeights, got {message!r}")

    async def _dispatch(self, plan: Plan) -> Dispatched:
        if plan.losses == self._losses:
            try:
                return await self._compute(plan)
            except ArgumentsLost:
                await self._begin_anew()
        return Dispatched(plan.tick, (), (), None, self._losses)

    async def _begin_anew(self) -> None:
        """Make the state of an idle engine in place of what is left of the one that was lost."""
        self._losses += 1
        for array in jax.tree.leaves((self._pages, self._slots)):
            array.delete()
        await self._programs.ready(EMPTY)
        self._pages, self._slots = await to_thread.run_sync(under_own_settings, self._programs.run, EMPTY)

    async def _compute(self, plan: Plan) -> Dispatched:
        for onload in plan.onloads:
            await self._scatter(onload)
        for chunk in plan.chunks:
            if chunk.completes is not None and chunk.completes.params.adjusts:
                await self._enter(chunk)
        if not plan.chunks and not plan.rows:
            return Dispatched(plan.tick, (), (), None, plan.losses)
        limits = self._limits
        parts = parts_of(plan, limits.data, limits.max_running, limits.num_pages)
        bucket, step = await self._programs.for_step(_bucket(parts, limits))
        packed = pack_plan(parts, InputLayout(bucket, limits.max_running, limits.pages_per_request))
        arguments = self._weights, self._pages, self._slots, packed
        self._pages, self._slots, outputs = await self._programs.call(bucket, step, *arguments)
        outputs.tokens.copy_to_host_async()
        return dispatched(plan, parts, bucket, limits.max_running, outputs)

    async def _gather(self, offload: Offload) -> Gathered:
        if offload.losses < self._losses:
            return Gathered(offload.offload_id, offload.entries, ())
        await self._programs.ready(GATHER)
        try:  # on CPU, a program that only copies may be run within its call
            contents = await to_thread.run_sync(under_own_settings, _gathered, self._programs, self._pages, offload)
        except jax.errors.JaxRuntimeError:  # no room beside the pool: what leaves it uncopied is computed again
            contents = ()
        return Gathered(offload.offload_id, offload.entries, contents)

    async def _scatter(self, onload: Onload) -> None:
        await self._programs.ready(SCATTER)
        self._pages = await to_thread.run_sync(under_own_settings, _scattered, self._programs, self._pages, onload)

    async def _enter(self, chunk: Chunk) -> None:
        assert chunk.completes is not None
        enter, adjustments = await self._programs.ready(ENTER), self._slots.adjustments
        # In a worker thread, because a request may adjust every token of a large vocabulary.
        vocabulary = adjustments.bias.shape[1]
        packed = await to_thread.run_sync(pack_adjustments, chunk.completes, chunk.generated, vocabulary)
        entered = await self._programs.call(ENTER, enter, adjustments, np.int32(chunk.slot), packed)
        self._slots = replace(self._slots, adjustments=entered)

    def free(self) -> None:
        """Delete the device state and the weights."""
        for array in jax.tree.leaves((self._pages, self._slots, self._weights)):
            array.delete()


def _bucket(parts: Sequence[Part], limits: Limits) -> Bucket:
    """Return the smallest bucket that holds what each group computes."""
    return Bucket(
        buckets.smallest(limits.prefill_buckets, max(part.blocks for part in parts) * QUERY_BLOCK),
        buckets.smallest(limits.decode_buckets, max(len(part.rows) for part in parts)),
    )


def _gathered(programs: Executables, pages: Pages, offload: Offload) -> tuple[jax.Array, ...]:
    return tuple(programs.run(GATHER, pages, np.int32(page)) for page in offload.pages)


def _scattered(programs: Executables, pages: Pages, onload: Onload) -> Pages:
    for page, content in zip(onload.pages, onload.staged, strict=True):
        pages = programs.run(SCATTER, pages, np.int32(page), content)
    return pages
