"""Orders to a device, each with its program and its arguments apart from the device state."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeAlias

import jax
import numpy as np

from rekindle.core.buckets import Bucket
from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.device.programs.functions import DeviceProgram, Key, embed_program, embeds
from rekindle.core.device.state import Pages, Slots
from rekindle.core.models.adapters.rows import Stacks
from rekindle.core.models.taps.interventions import Interventions
from rekindle.core.models.vision.patches import Patches


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
class StateOrder:
    """Order to copy one entry out of a part of the state, or to change it.

    Attributes:
        key: the program, with this part.
        index: the page or slot of the entry; for ALLOW, the places of several.
        content: the new content; None for a copy of the entry.
    """

    key: DeviceProgram
    index: Any
    content: Any = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """Order to compute something from weights and inputs, without a change of the state.

    Attributes:
        key: the key of the program.
        inputs: its second argument; for the vision tower, the rows and the patches of an `EmbedOrder`.
    """

    key: Key
    inputs: Any


@dataclass(frozen=True, slots=True)
class EmbedOrder:
    """Order to embed a segment of an image.

    Attributes:
        rows: the rows of the buffer for its tokens, (tokens,) int32; the last row of the buffer for those of padding.
        patches: the patches of the segment.
    """

    rows: Any
    patches: Patches

    @property
    def key(self) -> Key:
        """The key of the program."""
        return embed_program(self.patches.valid.shape[1])


Order: TypeAlias = TickOrder | StateOrder | EmbedOrder | Inspection


@dataclass(frozen=True, slots=True)
class Use:
    """Order to switch to the weights loaded by every process under this number. It has no program."""

    number: int


class PlacedWeights(list[jax.Array]):
    """Weights of a decoder on devices, in the order of the programs' arguments.

    Attributes:
        tower: the weights of another vision tower; empty to keep the tower.
    """

    def __init__(self, arrays: Iterable[jax.Array], tower: Iterable[jax.Array] = ()):
        super().__init__(arrays)
        self.tower = list(tower)


def tower_in(weights: list[jax.Array]) -> list[jax.Array]:
    """Return the weights of the vision tower among weights; empty without one."""
    return weights.tower if isinstance(weights, PlacedWeights) else []


class SharedWeights(PlacedWeights):
    """Weights with shards in other processes.

    Attributes:
        number: their identifier in every process.
    """

    def __init__(self, arrays: list[jax.Array], number: int):
        super().__init__(arrays, tower_in(arrays))
        self.number = number


class AwakeWeights(PlacedWeights):
    """Weights for a device state that was freed, with its new pages and slots, of an idle engine."""

    def __init__(self, arrays: list[jax.Array], pages: Pages, slots: Slots):
        super().__init__(arrays, tower_in(arrays))
        self.pages, self.slots = pages, slots


@dataclass(slots=True)
class DeviceState:
    """The arrays on the devices. Processes running the same sequence of orders have the same state.

    Attributes:
        weights: the first argument of every step.
        pages, slots: the page pool and slots, initially of an idle engine.
        adapters: the matrices of all adapters; empty until the first adapter.
        interventions: those of all slots; None until the first steered request.
        tower: the weights of the vision tower; empty without one.
        embeddings: the embeddings of images; None without a tower.
    """

    weights: list[jax.Array]
    pages: Pages
    slots: Slots
    adapters: Stacks = ()
    interventions: Interventions | None = None
    tower: list[jax.Array] = field(default_factory=list)
    embeddings: jax.Array | None = None

    def arguments(self, order: Order) -> tuple[Any, ...]:
        """Return the arguments for the program of an order. Some are donated, so `take` must follow."""
        match order:
            case TickOrder(bucket):
                further: list[Any] = [self.adapters] * bucket.adapters + [self.interventions] * bucket.steered
                further += [self.embeddings] * bucket.pictures
                return self.weights, *further, self.pages, self.slots, order.packed
            case StateOrder(program, index, content):
                part = attrgetter(program.part)(self)
                place = np.int32(index) if isinstance(index, int) else index
                return (part, place) if content is None else (part, place, content)
            case EmbedOrder(rows, patches):
                return self.tower, self.embeddings, rows, patches
            case Inspection(key, inputs) if embeds(key):
                return self.tower, self.embeddings, *inputs
            case Inspection():
                return self.weights, order.inputs

    def take(self, order: Order, results: Any) -> Any:
        """Store the new state from an order's results, and return the rest: outputs, a copy, or None."""
        match order:
            case TickOrder():
                self.pages, self.slots, outputs = results
                return outputs
            case EmbedOrder():
                self.embeddings = results
                return results
            case StateOrder(program, _, content) if content is not None:
                name, _, inner = program.part.partition(".")
                setattr(self, name, replace(getattr(self, name), **{inner: results}) if inner else results)
                return None
        return results

    def use(self, weights: list[jax.Array]) -> list[list[jax.Array]]:
        """Use other weights, with their vision tower if they have one; return the old ones."""
        old, self.weights = [self.weights], list(weights)
        if tower := tower_in(weights):
            old.append(self.tower)
            self.tower = tower
        return old

    def delete_state(self) -> None:
        """Delete the pages and slots, unless deleted already."""
        for array in jax.tree.leaves((self.pages, self.slots)):
            array.delete()

    def clear_inputs(self) -> None:
        """Forget the changes of activations, and clear the embeddings of images, which a failed program may have lost.

        The requests put them there again.
        """
        self.interventions = None
        if (lost := self.embeddings) is not None:
            zeros = np.zeros(lost.shape, lost.dtype)
            lost.delete()
            self.embeddings = with_overrides(jax.device_put, zeros, lost.sharding)

    def delete(self) -> None:
        """Delete the state, and all other arrays."""
        self.delete_state()
        further = self.adapters, self.interventions, self.tower, self.embeddings
        for array in (*self.weights, *jax.tree.leaves(further)):
            array.delete()
        release_host_memory()


def release_host_memory() -> None:
    """Make JAX release the host memory of deleted arrays. It does so only in its next call, such as this one."""
    with_overrides(jax.device_put, np.int32(0))
