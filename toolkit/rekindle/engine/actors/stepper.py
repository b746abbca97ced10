"""The stepper actor: puts plans to the device."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from anyio import to_thread

from rekindle import buckets
from rekindle.buckets import QUERY_BLOCK, Bucket
from rekindle.device.inputs import InputLayout
from rekindle.device.packing import dispatched, pack_adjustments, pack_plan
from rekindle.device.programs.executables import Executables
from rekindle.device.programs.lowering import ENTER, GATHER, SCATTER, Key, Program
from rekindle.device.state import Pages, Slots
from rekindle.messages import (
    Chunk,
    Dispatched,
    Gathered,
    Message,
    Offload,
    Onload,
    Plan,
    UseWeights,
    WeightsUsed,
)
from rekindle.scheduler.limits import Limits


class Stepper:
    """Owns the device state and puts plans to the device in order, without waiting for their results."""

    def __init__(self, executables: Executables, pages: Pages, slots: Slots, limits: Limits):
        self._executables = executables
        self._pages = pages
        self._slots = slots
        self._limits = limits

    async def handle(self, message: Message) -> list[Message]:
        """Plan becomes Dispatched, Offload Gathered, and UseWeights WeightsUsed.

        A bucket whose program is not ready is served by the next larger one that is. Only where there is none, this
        waits for the program.
        """
        match message:
            case Plan():
                return [await self._dispatch(message)]
            case Offload():
                return [await self._gather(message)]
            case UseWeights(ticket, weights):
                self._executables.weights = weights
                return [WeightsUsed(ticket)]
        raise TypeError(f"the stepper takes Plan, Offload and UseWeights, got {message!r}")

    async def _dispatch(self, plan: Plan) -> Dispatched:
        for onload in plan.onloads:
            await self._scatter(onload)
        for chunk in plan.chunks:
            if chunk.completes is not None and chunk.completes.params.adjusts:
                await self._enter(chunk)
        if not plan.chunks and not plan.rows:
            return Dispatched(plan.tick, (), (), None)
        bucket = await self._ready_bucket(self._bucket(plan))
        packed = pack_plan(plan, InputLayout.of(bucket, self._slots))
        arguments = self._executables.weights, self._pages, self._slots, packed
        self._pages, self._slots, outputs = await self._call(bucket, *arguments)
        outputs.tokens.copy_to_host_async()
        return dispatched(plan, bucket, self._limits.max_running, outputs)

    async def _gather(self, save: Offload) -> Gathered:
        program = await self._program(GATHER)
        try:  # on CPU, a program that only copies may be run within its call
            contents = await to_thread.run_sync(_gathered, program, self._pages, save)
        except jax.errors.JaxRuntimeError:  # no room beside the pool: what leaves it uncopied is computed again
            contents = ()
        return Gathered(save.offload_id, save.entries, contents)

    async def _scatter(self, onload: Onload) -> None:
        program = await self._program(SCATTER)
        self._pages = await to_thread.run_sync(_scattered, program, self._pages, onload)

    async def _enter(self, chunk: Chunk) -> None:
        assert chunk.completes is not None
        adjustments = self._slots.adjustments
        packed = pack_adjustments(chunk.completes, chunk.generated, adjustments.bias.shape[1])
        entered = await self._call(ENTER, adjustments, np.int32(chunk.slot), packed)
        self._slots = replace(self._slots, adjustments=entered)

    async def _call(self, key: Key, *arguments: Any) -> Any:
        program = await self._program(key)
        try:
            return program(*arguments)
        except (TypeError, ValueError):  # so jax refuses what the program was not compiled for, before it runs
            compile_for = self._executables.compile_for
            program = await to_thread.run_sync(compile_for, key, arguments, abandon_on_cancel=True)
            return program(*arguments)

    async def _program(self, key: Key) -> Program:
        program = self._executables.find(key)
        if program is None:
            program = await to_thread.run_sync(self._executables.obtain(key).result, abandon_on_cancel=True)
        return program

    async def _ready_bucket(self, needed: Bucket) -> Bucket:
        """The bucket itself, unless it is still to come and a larger one is ready, or is ready first."""
        while self._executables.find(needed) is None and self._executables.coming([needed]):
            larger = buckets.larger(self._limits.all_buckets(), needed)
            ready = next((bucket for bucket in larger if self._executables.find(bucket) is not None), None)
            if ready is not None:
                return ready
            futures = [self._executables.obtain(needed), *self._executables.coming(larger)]
            await to_thread.run_sync(_first, futures, abandon_on_cancel=True)
        return needed

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


def _first(futures: Sequence[Future[Program]]) -> None:
    """Wait for one of them, and raise its error if it failed."""
    done, _ = wait(futures, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()


def _gathered(program: Program, pages: Pages, save: Offload) -> tuple[jax.Array, ...]:
    return tuple(program(pages, np.int32(page)) for page in save.pages)


def _scattered(program: Program, pages: Pages, onload: Onload) -> Pages:
    for page, content in zip(onload.pages, onload.staged, strict=True):
        pages = program(pages, np.int32(page), content)
    return pages
