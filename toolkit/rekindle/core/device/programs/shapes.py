"""Shapes and dtypes of a model's arrays on the devices of one place: the arguments of its programs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rekindle.core.device.page_form import PageForm, StateForm
from rekindle.core.device.place import PAGE, PAGES, ROWS, SAME, STATES, WEIGHTS, Place
from rekindle.core.device.programs.vision_shapes import VisionShapes, VisionSizes
from rekindle.core.device.state import Pages, Sizes, Slots, empty_state
from rekindle.core.models.adapters.products import AdapterSizes, LinearShard, products_of
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import AbstractDecoder, abstract_decoder
from rekindle.core.models.shard import Shard
from rekindle.core.models.taps.interventions import Interventions
from rekindle.core.models.weights.form import WeightForm, held_bytes
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle_kernels.api import Choice, Implementation, choose
from rekindle_kernels.devices import capability_of

SLOTS: Final[Any] = Slots(ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, STATES)  # type: ignore[arg-type]
"""Partition specs of slots."""


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """The room for the adapters of a model on the devices of one place.

    Attributes:
        config: the model.
        sizes: the number of adapters, and their largest rank.
        dtype: the dtype of the matrices.
        implementation: the implementation of their packed form.
        place: the devices; they need not be attached.
    """

    config: ModelConfig
    sizes: AdapterSizes
    dtype: jnp.dtype
    implementation: Implementation
    place: Place

    @property
    def products(self) -> Sequence[LinearShard]:
        """The products with room for adapters, in the order of the programs' arguments; of the first device."""
        return products_of(self.config, self.place.shards[0])

    @property
    def one(self) -> Any:
        """The shapes and dtypes of one adapter's arrays, for each of the products."""
        return self._shapes()

    @property
    def all(self) -> Any:
        """The shapes and dtypes of the arrays of all adapters, for each of the products."""
        return self._shapes(self.sizes.slots)

    def forms(self, shard: Shard, *slots: int) -> list[tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]]:
        """Return the shapes and dtypes of one device's arrays, after an axis of slots if given."""
        forms = (each.forms(self.sizes, self.dtype, self.implementation) for each in products_of(self.config, shard))
        first, second = zip(*forms, strict=True)
        sides = [[jax.ShapeDtypeStruct((*slots, *each.shape), each.dtype) for each in side] for side in (first, second)]
        return list(zip(*sides, strict=True))

    def _shapes(self, *slots: int) -> Any:
        forms = self.forms(self.place.shards[0], *slots)
        return tuple((self.place.global_shape(a, WEIGHTS), self.place.global_shape(b, WEIGHTS)) for a, b in forms)


@dataclass(frozen=True, slots=True)
class StateShapes:
    """The device state of an engine, and the copies of its parts.

    Attributes:
        sizes: the sizes of the state.
        place: the devices; they need not be attached.
        empty: creates one device's shard of the pages and slots of an idle engine.
        pages, slots: the arrays over all devices.
        group_slots: the slots of one group.
        page_form, state_form: the forms of a copy of a page, and of a copy of a request's states.
        copy: the partition spec of a copy.
    """

    sizes: Sizes
    place: Place
    empty: Callable[[], tuple[Pages, Slots]]
    pages: Any
    slots: Any
    group_slots: Any
    page_form: PageForm
    state_form: StateForm
    copy: PartitionSpec

    @classmethod
    def of(
        cls, config: ModelConfig, sizes: Sizes, dtype: jnp.dtype, kernels: Implementation, place: Place
    ) -> "StateShapes":
        """Return the shapes for a model, with pages of this dtype."""
        empty = partial(empty_state, config, sizes, dtype, kernels, place.tensor)
        layers, group = jax.eval_shape(empty)
        pages = tuple(place.global_shape(layer, PAGES) for layer in layers)
        page_form, state_form = PageForm.of(config, pages, place), StateForm.of(config, place)
        # Of several processes, one keeps all copies: it needs whole pages, and sends them to the others.
        is_divided = page_form.has_head_axis and state_form.copy.shape[-1] % place.tensor == 0
        copy = PAGE if is_divided and place.processes == 1 else SAME
        slots = with_specs(place.global_shape, group, SLOTS)
        return cls(sizes, place, empty, pages, slots, group, page_form, state_form, copy)

    @property
    def copy_sharding(self) -> jax.sharding.Sharding:
        """The sharding of a copy."""
        return self.place.sharding(self.copy)

    @property
    def page(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a copy of a page over all layers, with each head once."""
        return self.page_form.array

    @property
    def state(self) -> jax.ShapeDtypeStruct | None:
        """The shape and dtype of a copy of a request's states; None for a model without states."""
        return self.state_form.copy if self.group_slots.states else None

    @property
    def state_bytes(self) -> int:
        """The bytes of one copy of a state; 0 for a model without states."""
        return 0 if self.state is None else _bytes([self.state])

    @property
    def page_bytes(self) -> int:
        """The bytes of a page over all layers, in the kernels' format."""
        return _bytes([jax.ShapeDtypeStruct(layer.shape[1:], layer.dtype) for layer in self.pages])

    @property
    def slot_bytes(self) -> int:
        """The bytes of all slots of a group."""
        return _bytes(jax.tree.leaves(self.group_slots))


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """A model on the devices of one place.

    Attributes:
        config: the structure of the model.
        form: the form of the weights.
        kernels: the kernels.
        decoder: the decoder without weights.
        weights: the weights over all devices.
        state: the device state of the engine.
        adapters: the room for adapters.
        vision: the tower for images; None for a model without.
    """

    config: ModelConfig
    form: WeightForm
    kernels: Choice
    decoder: AbstractDecoder
    weights: Sequence[jax.ShapeDtypeStruct]
    state: StateShapes
    adapters: AdapterRoom
    vision: VisionShapes | None = None

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        sizes: Sizes,
        form: WeightForm,
        place: Place,
        implementation: Implementation | None,
        kv_dtype: jnp.dtype,
        adapters: AdapterSizes,
        vision: VisionSizes | None = None,
    ) -> "ModelShapes":
        """Return the shapes of a model; raises ValueError for an implementation without support for its pages."""
        pools = config.pools(sizes.num_pages, sizes.page_size, place.tensor)
        first = place.first
        kernels = choose(
            first.platform, pools, kv_dtype, implementation, weights=form.dtype, capability=capability_of(first)
        )
        name = kernels.implementation
        decoder = abstract_decoder(config, form, name, place.shards[0])
        weights = [place.global_shape(form, WEIGHTS) for form in decoder.forms]
        state = StateShapes.of(config, sizes, kv_dtype, name, place)
        room = AdapterRoom(config, adapters, form.dtype, name, place)
        tower = None if vision is None else VisionShapes.of(vision, form, name, place)
        return cls(config, form, kernels, decoder, weights, state, room, tower)

    @property
    def implementation(self) -> Implementation:
        """The kernel implementation."""
        return self.kernels.implementation

    @property
    def place(self) -> Place:
        """The devices; they need not be attached."""
        return self.state.place

    @property
    def intervention(self) -> Interventions:
        """The interventions of one request."""
        return Interventions.forms((), self.config.hidden_size)

    @property
    def interventions(self) -> Any:
        """The interventions of all slots over all devices."""
        group = Interventions.forms((self.state.sizes.max_running + 1,), self.config.hidden_size)
        return with_specs(self.place.global_shape, group, ROWS)

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights over the devices of a group."""
        return sum(held_bytes(array, self.place.first.platform) for array in self.weights)

    @property
    def vision_bytes(self) -> int:
        """The bytes of the tower's weights, and of the buffer of embeddings, over the devices of a group."""
        if self.vision is None:
            return 0
        tower = sum(held_bytes(array, self.place.first.platform) for array in self.vision.weights)
        return self.place.tensor * (tower + _bytes([self.vision.buffer]))

    @property
    def adapter_bytes(self) -> int:
        """The bytes of the arrays of all adapters over the devices of a group."""
        return _bytes(jax.tree.leaves(self.adapters.all))

    @property
    def widened_bytes(self) -> int:
        """The most bytes of a packed matrix widened in a step, or of its partial sums."""
        return 0 if self.implementation == "cpu" else _widened_bytes(self.decoder.requests, self.form)


def with_specs(function: Callable[[Any, PartitionSpec], Any], arrays: Any, specs: Any) -> Any:
    """Map each array of a tree with its partition spec; a spec stands for all arrays below its place."""
    return jax.tree.map(
        lambda spec, part: jax.tree.map(lambda each: function(each, spec), part), specs, arrays, is_leaf=is_spec
    )


def is_spec(x: Any) -> bool:
    """Return True for a partition spec, a leaf of a tree of them."""
    return isinstance(x, PartitionSpec)


def _bytes(arrays: Sequence[Any]) -> int:
    """Return the total bytes of arrays of these shapes."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def _widened_bytes(requests: Sequence[JoinedTensors], form: WeightForm) -> int:
    """Return the bytes of the largest packed matrix in the dtype of its products."""
    size = 2 if form.activations in ("bfloat16", "float16") else 4
    packed = (request.plain[-2:] for request in requests if request.storage(form) is not None)
    return size * max(map(math.prod, packed), default=0)
