"""Orders to a device, each with its program and its arguments apart from the device state."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import jax
import numpy as np

from rekindle.core.buckets import Bucket
from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.device.programs.lowering import (
    ADAPT,
    ALLOW,
    ENTER,
    GATHER,
    GATHER_STATE,
    SCATTER,
    SCATTER_STATE,
    STEER,
    Key,
)
from rekindle.core.device.state import Pages, Slots
from rekindle.core.models.adapters.rows import Stacks
from rekindle.core.models.taps.interventions import Interventions


@dataclass(frozen=True, slots=True)
class TickOrder:
    """Order to compute a tick.

    Attributes:
        bucket: the bucket of its program.
        packed: the packed inputs, int32, see `InputLayout`.
    """

    bucket: Bucket
    packed: Any

    @property
    def key(self) -> Key:
        """The key of the program."""
        return self.bucket


@dataclass(frozen=True, slots=True)
class Enter:
    """Order to fill the adjustments of a slot, packed by `pack_adjustments`."""

    slot: int
    packed: Any
    key: ClassVar[Key] = ENTER


@dataclass(frozen=True, slots=True)
class Allow:
    """Order to set the allowed-token masks of some slots, from `masks_of`."""

    slots: Any
    bits: Any
    key: ClassVar[Key] = ALLOW


@dataclass(frozen=True, slots=True)
class Gather:
    """Order to copy a page out of the pool."""

    page: int
    key: ClassVar[Key] = GATHER


@dataclass(frozen=True, slots=True)
class Scatter:
    """Order to copy page content from `Gather` into a page of the pool."""

    page: int
    content: Any
    key: ClassVar[Key] = SCATTER


@dataclass(frozen=True, slots=True)
class GatherState:
    """Order to copy the state of a slot."""

    slot: int
    key: ClassVar[Key] = GATHER_STATE


@dataclass(frozen=True, slots=True)
class ScatterState:
    """Order to copy a state from `GatherState` into a slot."""

    slot: int
    content: Any
    key: ClassVar[Key] = SCATTER_STATE


@dataclass(frozen=True, slots=True)
class Adapt:
    """Order to put an adapter into a slot, packed by `pack_adapter`."""

    slot: int
    content: Any
    key: ClassVar[Key] = ADAPT


@dataclass(frozen=True, slots=True)
class Steer:
    """Order to put the interventions of a request into its slot, packed by `pack_changes`."""

    slot: int
    content: Any
    key: ClassVar[Key] = STEER


@dataclass(frozen=True, slots=True)
class Inspection:
    """Order to compute something from the weights and inputs alone.

    Attributes:
        key: the key of the program.
        inputs: its second argument.
    """

    key: Key
    inputs: Any


Order: TypeAlias = (
    TickOrder | Enter | Allow | Gather | Scatter | GatherState | ScatterState | Adapt | Steer | Inspection
)


@dataclass(frozen=True, slots=True)
class Use:
    """Order to switch to the weights loaded by every process under this number. It has no program."""

    number: int


class SharedWeights(list[jax.Array]):
    """Weights with shards in other processes.

    Attributes:
        number: their identifier in every process.
    """

    def __init__(self, arrays: Iterable[jax.Array], number: int):
        super().__init__(arrays)
        self.number = number


class AwakeWeights(list[jax.Array]):
    """Weights for a device state that was freed, with its new pages and slots, of an idle engine."""

    def __init__(self, arrays: Iterable[jax.Array], pages: Pages, slots: Slots):
        super().__init__(arrays)
        self.pages, self.slots = pages, slots


@dataclass(slots=True)
class DeviceState:
    """The arrays on the devices. Processes running the same sequence of orders have the same state.

    Attributes:
        weights: the first argument of every step.
        pages, slots: the page pool and slots, initially of an idle engine.
        adapters: the matrices of all adapters; empty until the first adapter.
        interventions: those of all slots; None until the first steered request.
    """

    weights: list[jax.Array]
    pages: Pages
    slots: Slots
    adapters: Stacks = ()
    interventions: Interventions | None = None

    def arguments(self, order: Order) -> tuple[Any, ...]:
        """Return the arguments for the program of an order. Some are donated, so `take` must follow."""
        match order:
            case TickOrder(bucket):
                further = [self.adapters] * bucket.adapters + [self.interventions] * bucket.steered
                return self.weights, *further, self.pages, self.slots, order.packed
            case Enter():
                return self.slots.adjustments, np.int32(order.slot), order.packed
            case Allow():
                return self.slots.allowed, order.slots, order.bits
            case Gather():
                return self.pages, np.int32(order.page)
            case Scatter():
                return self.pages, np.int32(order.page), order.content
            case GatherState():
                return self.slots.states, np.int32(order.slot)
            case ScatterState():
                return self.slots.states, np.int32(order.slot), order.content
            case Adapt():
                return self.adapters, np.int32(order.slot), order.content
            case Steer():
                return self.interventions, np.int32(order.slot), order.content
            case Inspection():
                return self.weights, order.inputs

    def take(self, order: Order, results: Any) -> Any:
        """Store the new state from an order's results, and return the rest: outputs, a copy, or None."""
        match order:
            case TickOrder():
                self.pages, self.slots, outputs = results
                return outputs
            case Enter():
                self.slots = replace(self.slots, adjustments=results)
            case Allow():
                self.slots = replace(self.slots, allowed=results)
            case Gather() | GatherState() | Inspection():
                return results
            case Scatter():
                self.pages = results
            case ScatterState():
                self.slots = replace(self.slots, states=results)
            case Adapt():
                self.adapters = results
            case Steer():
                self.interventions = results
        return None

    def delete_state(self) -> None:
        """Delete the pages and slots, unless deleted already."""
        for array in jax.tree.leaves((self.pages, self.slots)):
            array.delete()

    def delete(self) -> None:
        """Delete the state, the weights, the adapters and the interventions."""
        self.delete_state()
        for array in (*self.weights, *jax.tree.leaves((self.adapters, self.interventions))):
            array.delete()
        release_host_memory()


def release_host_memory() -> None:
    """Make JAX release the host memory of deleted arrays. It does so only in its next call, such as this one."""
    with_overrides(jax.device_put, np.int32(0))
