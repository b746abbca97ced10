"""The stepper actor: runs plans on the device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import jax
import numpy as np
from anyio import CancelScope, to_thread

from rekindle.core import buckets
from rekindle.core.buckets import PIECE, QUERY_BLOCK, Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.device.memory import is_out_of_memory
from rekindle.core.device.orders import (
    AwakeWeights,
    DeviceState,
    EmbedOrder,
    Inspection,
    Order,
    SharedWeights,
    StateOrder,
    TickOrder,
    Use,
    release_host_memory,
)
from rekindle.core.device.packing import (
    GroupPart,
    describe_outputs,
    masks_of,
    pack_adjustments,
    pack_changes,
    pack_plan,
    parts_of,
)
from rekindle.core.device.programs.executables import ArgumentsLost, Executables
from rekindle.core.device.programs.functions import (
    ADAPT,
    ALLOW,
    EMPTY,
    ENTER,
    GATHER,
    GATHER_EMBEDDINGS,
    GATHER_STATE,
    SCATTER,
    SCATTER_EMBEDDINGS,
    SCATTER_STATE,
    STEER,
    UNSTEERED,
)
from rekindle.core.device.programs.lowering import Program
from rekindle.core.errors import EngineFailed
from rekindle.core.messages import (
    AdapterPut,
    Chunk,
    Collect,
    Collected,
    Dispatched,
    Gathered,
    Inspect,
    Inspected,
    Message,
    Offload,
    Onload,
    PictureRead,
    Plan,
    PutAdapter,
    PutPages,
    ReadPicture,
    Row,
    StateLost,
    StoredPicture,
    UseWeights,
    WeightsUsed,
)
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.request.activations.changes import Changes
from rekindle.core.scheduler.limits import EngineLimits

Send = Callable[[Order | Use], None]
"""A function that sends an order to other processes before it runs here; it must not block."""


class Stepper:
    """The stepper actor, the owner of the device state: turns plans into orders, and runs these without waiting.

    Args:
        programs: compiled programs.
        state: the weights, and the state of an idle engine.
        limits: resolved settings.
        send: sends orders to other processes with shards of the state; None without any.
    """

    def __init__(
        self,
        programs: Executables,
        state: DeviceState,
        limits: EngineLimits,
        send: Send | None = None,
    ):
        self._programs = programs
        self._state = state
        self._limits = limits
        self._send = send
        self._losses = 0  # number of losses of the device state
        self._changes: dict[int, Changes] = {}  # in the slots of the device
        self._asleep, self._version = False, 0
        self._packed: tuple[tuple[Bucket, tuple[Row, ...]] | None, Any, Dispatched] | None = None

    async def handle(self, message: Message) -> list[Message]:
        """Turn Plan into Dispatched, Offload into Gathered, Collect into Collected, UseWeights into WeightsUsed.

        Turn PutAdapter into AdapterPut, Inspect into Inspected, and ReadPicture into PictureRead.
        """
        match message:
            case Plan():
                return [await self._dispatch(message)]
            case ReadPicture(digest, rows, losses):
                orders = [StateOrder(GATHER_EMBEDDINGS, piece) for piece in self._pieces(rows)]
                pieces = await self._copies(orders, losses)
                return [PictureRead(digest, pieces, len(rows))] if pieces else []
            case Offload():
                return [await self._gather(message)]
            case Collect(request_id, pages, losses):
                return [Collected(request_id, await self._copies([StateOrder(GATHER, page) for page in pages], losses))]
            case PutPages(pages, contents, losses):
                if losses == self._losses:
                    await self._put(Onload(contents, pages))
                return []
            case UseWeights(ticket, weights, version, asleep):
                if isinstance(weights, SharedWeights):
                    self._broadcast(Use(weights.number))
                old = self._state.use(weights)
                if asleep:
                    self._losses += 1
                    self._state.delete_state()
                elif self._asleep:
                    await self._wake(weights)
                self._asleep, self._version = asleep, version
                await to_thread.run_sync(_forget, old)  # in a worker thread, as it may free gigabytes
                return [WeightsUsed(ticket, version, asleep)]
            case StateLost(losses):
                if losses == self._losses:
                    self._require_alone(MemoryError(str(message)))
                    await self._replace_state()
                return []
            case PutAdapter(ticket, slot, content, empty):
                self._state.adapters = self._state.adapters or empty
                await self._run(StateOrder(ADAPT, slot, content), await self._programs.ready(ADAPT))
                return [AdapterPut(ticket)]
            case Inspect(ticket, key, inputs, take):
                inspected = await self._inspect(Inspection(key, inputs), take or jax.block_until_ready)
                return [Inspected(ticket, inspected, self._version)]
        raise wrong_receiver("stepper", message)

    async def _dispatch(self, plan: Plan) -> Dispatched:
        if plan.losses == self._losses:
            try:
                return await self._compute(plan)
            except (ArgumentsLost, jax.errors.JaxRuntimeError) as error:
                if not (isinstance(error, ArgumentsLost) or is_out_of_memory(error)):
                    raise
                self._require_alone(error)
                await self._replace_state()
                if not isinstance(error, ArgumentsLost):
                    lost = error.with_traceback(None)  # whose frames would keep arrays
                    return Dispatched(plan.tick, (), (), None, self._losses, needing=_needing(plan), error=lost)
        return Dispatched(plan.tick, (), (), None, self._losses)

    async def _replace_state(self) -> None:
        """Replace a lost device state by the state of an idle engine."""
        self._losses += 1
        self._state.delete_state()
        self._state.clear_inputs()
        self._changes.clear()
        await self._allocate()

    async def _wake(self, weights: list[jax.Array]) -> None:
        """Have pages and slots again: those that came with the weights."""
        if isinstance(weights, AwakeWeights):
            self._state.pages, self._state.slots = weights.pages, weights.slots
        else:  # the weights were read before the engine went to sleep
            await self._allocate()

    async def _allocate(self) -> None:
        """Allocate the pages and slots of an idle engine."""
        await self._programs.ready(EMPTY)
        empty = await to_thread.run_sync(with_overrides, self._programs.run, EMPTY)
        self._state.pages, self._state.slots = empty

    async def _compute(self, plan: Plan) -> Dispatched:
        for onload in plan.onloads:
            await self._scatter(onload)
        awaited = None
        for embedding in plan.embeddings:
            if isinstance(embedding.patches, StoredPicture):
                await self._place(embedding.rows, embedding.patches.values)
                continue
            order = EmbedOrder(embedding.rows, embedding.patches)
            awaited = await self._run(order, await self._programs.ready(order.key))
        for chunk in plan.chunks:
            if chunk.completes is not None and chunk.completes.params.adjusts:
                await self._enter(chunk)
        limits = self._limits
        parts = parts_of(plan, limits.data, limits.max_running, limits.pool.num_pages)
        await self._allow(parts)
        if plan.steered:
            await self._steer(plan.items)
        if not plan.chunks and not plan.rows:
            return Dispatched(plan.tick, (), (), None, plan.losses, awaited=awaited, needing=_needing(plan))
        smallest = _bucket(parts, limits, plan, has_adapters=bool(self._state.adapters))
        bucket, step = await self._programs.for_step(smallest)
        began = perf_counter()
        packed, described = self._pack(plan, parts, bucket)
        outputs = await self._run(TickOrder(bucket, packed), step)
        outputs.tokens.copy_to_host_async()
        dispatched = replace(described, tick=plan.tick, outputs=outputs, losses=plan.losses)
        rows = 0 if bucket.prefill_tokens else bucket.decode_rows
        sizes = [each for each in limits.decode_buckets if self._programs.is_pending(bucket._replace(decode_rows=each))]
        sizes = sizes if rows else []
        return replace(dispatched, rows=rows, began=began, unready=tuple(sizes), needing=_needing(plan))

    async def _place(self, rows: Any, values: Any) -> None:
        """Put stored embeddings into rows of the buffer."""
        padded = np.zeros((-(-len(rows) // PIECE) * PIECE, values.shape[1]), np.float32)
        padded[: len(rows)] = values
        contents = np.split(padded, len(padded) // PIECE)
        pieces = zip(self._pieces(rows), contents, strict=True)
        await self._run_all([StateOrder(SCATTER_EMBEDDINGS, piece, content) for piece, content in pieces])

    def _pieces(self, rows: Any) -> list[Any]:
        """Return rows in pieces of `PIECE`; padding is the last row of the buffer."""
        padding = np.full(-len(rows) % PIECE, self._limits.picture_rows, np.int32)
        whole = np.concatenate([rows, padding]).astype(np.int32)
        return np.split(whole, len(whole) // PIECE)

    def _pack(self, plan: Plan, parts: Sequence[GroupPart], bucket: Bucket) -> tuple[Any, Dispatched]:
        """Return the input array of a plan and its outputs without their arrays, for the same rows again the same."""
        rows, limits = (bucket, plan.rows), self._limits
        if plan.chunks or self._packed is None or self._packed[0] != rows:
            layout = InputLayout(bucket, limits.max_running, limits.pool.pages_per_request)
            described = describe_outputs(plan, parts, bucket, limits.max_running)
            self._packed = None if plan.chunks else rows, pack_plan(parts, layout), described
        return self._packed[1:]

    async def _gather(self, offload: Offload) -> Gathered:
        orders = [StateOrder(GATHER, page) for page in offload.pages]
        orders += [StateOrder(GATHER_STATE, slot) for slot in offload.slots]
        return Gathered(offload.offload_id, offload.entries, await self._copies(orders, offload.losses))

    async def _copies(self, orders: Sequence[Order], losses: int) -> tuple[Any, ...]:
        """Return copies of pages and states; () if the device state was lost, or the device has no room."""
        if losses < self._losses:
            return ()
        try:
            return tuple(await self._run_all(orders))
        except jax.errors.JaxRuntimeError as error:  # no room outside the pool
            self._require_alone(error)
            return ()  # the pages will be computed again

    async def _inspect(self, inspection: Inspection, take: Callable[[Any], Any]) -> Any:
        """Return the results of an inspection, None without weights, or the error of a device without room."""
        if not self._state.weights:
            return None
        try:
            results = await self._run(inspection, await self._programs.ready(inspection.key))
            return await to_thread.run_sync(take, results)
        except jax.errors.JaxRuntimeError as error:
            self._require_alone(error)
            return error

    async def _put(self, onload: Onload) -> None:
        """Copy pages into the pool outside of a plan. The next plan reports a state lost here."""
        try:
            await self._scatter(onload)
        except (ArgumentsLost, jax.errors.JaxRuntimeError) as error:
            if not (isinstance(error, ArgumentsLost) or is_out_of_memory(error)):
                raise
            self._require_alone(error)
            await self._replace_state()

    async def _scatter(self, onload: Onload) -> None:
        orders = [StateOrder(SCATTER, page, copy) for page, copy in zip(onload.pages, onload.staged, strict=True)]
        if onload.slot is not None:
            orders.append(StateOrder(SCATTER_STATE, onload.slot, onload.state))
        await self._run_all(orders)

    async def _enter(self, chunk: Chunk) -> None:
        assert chunk.completes is not None
        program = await self._programs.ready(ENTER)
        # In a worker thread, because a request may adjust every token of a large vocabulary.
        vocabulary = self._state.slots.adjustments.bias.shape[1]
        packed = await to_thread.run_sync(pack_adjustments, chunk.completes, chunk.generated, vocabulary)
        await self._run(StateOrder(ENTER, chunk.slot, packed), program)

    async def _allow(self, parts: Sequence[GroupPart]) -> None:
        """Write the allowed-token masks of constrained requests."""
        for masks in masks_of(parts, self._limits.max_running):
            await self._run(StateOrder(ALLOW, *masks), await self._programs.ready(ALLOW))

    async def _steer(self, items: Sequence[Chunk | Row]) -> None:
        """Put the changes of steered requests into their slots, and remove those of earlier requests there."""
        if self._state.interventions is None:
            self._state.interventions = await self._programs.call(UNSTEERED, await self._programs.ready(UNSTEERED))
        program, hidden = await self._programs.ready(STEER), self._state.interventions.vectors.shape[-1]
        for item in items:
            if self._changes.get(item.slot) is item.changes:
                continue
            await self._run(StateOrder(STEER, item.slot, pack_changes(item.changes, hidden)), program)
            if item.changes is None:
                del self._changes[item.slot]
            else:
                self._changes[item.slot] = item.changes

    async def _run(self, order: Order, program: Program) -> Any:
        self._broadcast(order)
        with CancelScope(shield=self._send is not None):  # an order sent to others must run here too
            results = await self._programs.call(order.key, program, *self._state.arguments(order))
        return self._state.take(order, results)

    async def _run_all(self, orders: Sequence[Order]) -> list[Any]:
        """Run orders of copies in a worker thread: on CPUs, a copying program may run within its call."""
        for key in {order.key for order in orders}:
            await self._programs.ready(key)
        return await to_thread.run_sync(with_overrides, lambda: [self._run_here(order) for order in orders])

    def _run_here(self, order: Order) -> Any:
        self._broadcast(order)
        return self._state.take(order, self._programs.run(order.key, *self._state.arguments(order)))

    def _broadcast(self, order: Order | Use) -> None:
        if self._send is not None:
            self._send(order)

    def _require_alone(self, error: Exception) -> None:
        """Require the whole device state in this process; after a local failure, followers would have another state.

        Raises:
            EngineFailed: other processes have shards of the state.
        """
        if self._send is not None:
            raise EngineFailed(
                "the engine stopped because a program failed in this process and not in its followers "
                f"({type(error).__name__}: {error}). Open another session"
            ) from error

    def free(self) -> None:
        """Delete the device state and the weights."""
        self._state.delete()


def _forget(weights: list[list[jax.Array]]) -> None:
    weights.clear()
    release_host_memory()


def _needing(plan: Plan) -> tuple[int, ...]:
    """Return the ids of the requests that a tick takes memory for: those with a prompt or an image, else all rows."""
    items = plan.chunks or plan.embeddings or plan.rows
    return tuple(dict.fromkeys(item.request_id for item in items))


def _bucket(parts: Sequence[GroupPart], limits: EngineLimits, plan: Plan, *, has_adapters: bool) -> Bucket:
    """Return the smallest bucket with room for each group's part of a tick.

    With adapters on the device, ticks with images or steered rows have room for adapters too: fewer programs.
    """
    return Bucket(
        buckets.smallest(limits.prefill_buckets, max(part.blocks for part in parts) * QUERY_BLOCK),
        buckets.smallest(limits.decode_buckets, max(len(part.rows) for part in parts)),
        plan.adapted or (has_adapters and (plan.pictured or plan.steered)),
        plan.steered,
        plan.pictured,
        limits.proposes,
        limits.windows,
        limits.coordinates,
    )
