"""The orders that change a device's state: one program each, with what it is given beside the state."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import jax
import numpy as np

from rekindle.core.buckets import Bucket
from rekindle.core.device.jax_settings import under_own_settings
from rekindle.core.device.programs.lowering import ALLOW, ENTER, GATHER, SCATTER, Key
from rekindle.core.device.state import Pages, Slots


@dataclass(frozen=True, slots=True)
class TickOrder:
    """Compute a tick.

    Attributes:
        bucket: the one in which it runs.
        packed: its inputs, int32, see `InputLayout`.
    """

    bucket: Bucket
    packed: Any

    @property
    def key(self) -> Key:
        """The program that does it."""
        return self.bucket


@dataclass(frozen=True, slots=True)
class Enter:
    """Enter what changes the logits of a slot, packed as `pack_adjustments` does."""

    slot: int
    packed: Any
    key: ClassVar[Key] = ENTER


@dataclass(frozen=True, slots=True)
class Allow:
    """Set which tokens may come next in some slots, as `pack_allowed` gives it."""

    slots: Any
    bits: Any
    key: ClassVar[Key] = ALLOW


@dataclass(frozen=True, slots=True)
class Gather:
    """Copy a page out of the pool."""

    page: int
    key: ClassVar[Key] = GATHER


@dataclass(frozen=True, slots=True)
class Scatter:
    """Copy what `Gather` gave into a page of the pool."""

    page: int
    content: Any
    key: ClassVar[Key] = SCATTER


Order: TypeAlias = TickOrder | Enter | Allow | Gather | Scatter


@dataclass(frozen=True, slots=True)
class Use:
    """Use the weights that every process has read under this number. It takes no program."""

    number: int


class SharedWeights(list[jax.Array]):
    """Weights of which other processes have shares.

    Attributes:
        number: by which they know them.
    """

    def __init__(self, arrays: Iterable[jax.Array], number: int):
        super().__init__(arrays)
        self.number = number


@dataclass(slots=True)
class DeviceState:
    """The arrays on the devices. Processes in which the same orders are run, one after the other, have the same state.

    Attributes:
        weights: the first argument of every step.
        pages, slots: of an idle engine, at first.
    """

    weights: list[jax.Array]
    pages: Pages
    slots: Slots

    def arguments(self, order: Order) -> tuple[Any, ...]:
        """Return what the program of an order takes now. Some of it is donated, so `take` has to follow."""
        match order:
            case TickOrder():
                return self.weights, self.pages, self.slots, order.packed
            case Enter():
                return self.slots.adjustments, np.int32(order.slot), order.packed
            case Allow():
                return self.slots.allowed, order.slots, order.bits
            case Gather():
                return self.pages, np.int32(order.page)
            case Scatter():
                return self.pages, np.int32(order.page), order.content

    def take(self, order: Order, results: Any) -> Any:
        """Keep the state that the program of an order returned, and return what else it did: outputs, or a copy."""
        match order:
            case TickOrder():
                self.pages, self.slots, outputs = results
                return outputs
            case Enter():
                self.slots = replace(self.slots, adjustments=results)
            case Allow():
                self.slots = replace(self.slots, allowed=results)
            case Gather():
                return results
            case Scatter():
                self.pages = results
        return None

    def delete_state(self) -> None:
        """Delete the pages and slots, as far as they are still there."""
        for array in jax.tree.leaves((self.pages, self.slots)):
            array.delete()

    def delete(self) -> None:
        """Delete everything."""
        self.delete_state()
        for array in self.weights:
            array.delete()
        let_go()


def let_go() -> None:
    """Have JAX let go of the host memory in which arrays lay that are gone. It does so in its next call, not before."""
    under_own_settings(jax.device_put, np.int32(0))
