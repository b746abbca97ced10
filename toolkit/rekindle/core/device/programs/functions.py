"""Functions of a model's programs, on one device or on a mesh."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax import lax
from jax.sharding import PartitionSpec

from rekindle.core.buckets import Bucket
from rekindle.core.device.page_form import PageForm, StateForm
from rekindle.core.device.place import PAGE, PAGES, ROWS, SAME, STATES, WEIGHTS, Place
from rekindle.core.device.programs.adapter_room import AdapterRoom
from rekindle.core.device.sampling.adjustments import Adjustments, enter_slot
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.state import Content, Pages, Sizes, Slots, gather, gather_state, scatter, scatter_state
from rekindle.core.device.step import step
from rekindle.core.models.adapters.rows import Adapters, Stacks
from rekindle.core.models.decoder import AbstractDecoder
from rekindle.core.models.inspection.look import Look, LookInputs, lens, look
from rekindle.core.models.mixing import State
from rekindle.core.models.taps.interventions import Interventions
from rekindle.core.page import NULL_PAGE
from rekindle_kernels.api import Implementation

SLOTS: Final[Any] = Slots(ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, STATES)  # type: ignore[arg-type]
"""Partition specs of slots."""


@dataclass(frozen=True, slots=True)
class Function:
    """The function of a program, with the sharding of its arguments and results.

    Attributes:
        into, out: the partition specs of arguments and results, from `place`; each for all arrays of an argument, or
            a tree of them.
        donated: the indices of donated arguments.
    """

    function: Callable[..., Any]
    into: tuple[Any, ...]
    out: Any
    donated: tuple[int, ...] = ()


def step_function(
    place: Place,
    abstract: AbstractDecoder,
    sizes: Sizes,
    processor: LogitsProcessor | None,
    bucket: Bucket,
    room: AdapterRoom,
) -> Function:
    """Return the step function of a bucket.

    Args:
        room: the room for adapters, for a bucket with adapters.
    """

    def run(weights: list[jax.Array], *arguments: Any) -> Any:
        *further, pages, slots, packed = arguments
        adapters = Adapters(room.products, further.pop(0), room.sizes) if bucket.adapters else None
        interventions = further.pop(0) if bucket.steered else None
        decoder = abstract.with_weights(weights)
        return step(decoder, pages, slots, packed, bucket, sizes.max_logprobs, processor, adapters, interventions)

    further = [WEIGHTS] * bucket.adapters + [ROWS] * bucket.steered
    into, out = (WEIGHTS, *further, PAGES, SLOTS, ROWS), (PAGES, SLOTS, ROWS)
    return Function(place.on_each_device(run, into, out), into, out, (len(into) - 3, len(into) - 2))


def steer_function(place: Place, max_running: int) -> Function:
    """Return the function to put the interventions of a request into its slot, on the devices of its group."""

    def steer(every: Interventions, slot: jax.Array, content: Interventions) -> Interventions:
        own = place.local_index(slot, max_running, other=max_running)
        result: Interventions = jax.tree.map(
            lambda array, one: lax.dynamic_update_index_in_dim(array, one, own, 0), every, content
        )
        return result

    return Function(place.on_each_device(steer, (ROWS, SAME, SAME), ROWS), (ROWS, SAME, SAME), ROWS)


def look_function(place: Place, abstract: AbstractDecoder, shape: Look) -> Function:
    """Return the function of a look at a sequence."""

    def run(weights: list[jax.Array], inputs: LookInputs) -> tuple[jax.Array, jax.Array]:
        return look(abstract.with_weights(weights), inputs, shape.states)

    return Function(place.on_each_device(run, (WEIGHTS, SAME), SAME), (WEIGHTS, SAME), SAME)


def lens_function(place: Place, abstract: AbstractDecoder) -> Function:
    """Return the function of the logit lens."""

    def run(weights: list[jax.Array], hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lens(abstract.with_weights(weights), hidden)

    return Function(place.on_each_device(run, (WEIGHTS, SAME), SAME), (WEIGHTS, SAME), SAME)


def adapt_function(place: Place) -> Function:
    """Return the function to put an adapter into a slot. Its argument stays usable, should the program fail."""

    def adapt(stacks: Stacks, slot: jax.Array, content: Stacks) -> Stacks:
        result: Stacks = jax.tree.map(
            lambda stack, array: lax.dynamic_update_index_in_dim(stack, array, slot, 0), stacks, content
        )
        return result

    into = (WEIGHTS, SAME, WEIGHTS)
    return Function(place.on_each_device(adapt, into, WEIGHTS), into, WEIGHTS)


def enter_function(place: Place, max_running: int) -> Function:
    """Return the function to fill a slot's adjustments, on the devices of its group."""

    def enter(adjustments: Adjustments, slot: jax.Array, packed: jax.Array) -> Adjustments:
        return enter_slot(adjustments, place.local_index(slot, max_running, other=max_running), packed)

    return Function(place.on_each_device(enter, (ROWS, SAME, SAME), ROWS), (ROWS, SAME, SAME), ROWS, (0,))


def allow_function(place: Place, max_running: int) -> Function:
    """Return the function to write allowed-token masks into slots, on the devices of their groups."""

    def allow(rows: jax.Array, slots: jax.Array, bits: jax.Array) -> jax.Array:
        return rows.at[place.local_index(slots, max_running, other=max_running)].set(bits)

    return Function(place.on_each_device(allow, (ROWS, SAME, SAME), ROWS), (ROWS, SAME, SAME), ROWS, (0,))


def copy_functions(
    place: Place, form: PageForm, kernels: Implementation, num_pages: int, page: PartitionSpec
) -> tuple[Function, Function]:
    """Return the functions to copy a page out of the pools, as an array of this form, and back in.

    Args:
        form: the form of a copy.
        page: the partition spec of a copy.
    """

    def local(page_id: jax.Array) -> jax.Array:
        return place.local_index(page_id, num_pages, other=NULL_PAGE)

    def read(pages: Pages, page_id: jax.Array) -> Content:
        kinds = gather(pages, local(page_id), kernels)
        return tuple(place.from_group(kind, page_id, num_pages) for kind in kinds)

    def write(pages: Pages, page_id: jax.Array, content: Content) -> Pages:
        return scatter(pages, local(page_id), content, kernels)

    out = place.on_each_device(read, (PAGES, SAME), PAGE)
    into = place.on_each_device(write, (PAGES, SAME, PAGE), PAGES)

    def gather_page(pages: Pages, page_id: jax.Array) -> jax.Array:
        return form.join(out(pages, page_id))

    def scatter_page(pages: Pages, page_id: jax.Array, content: jax.Array) -> Pages:
        result: Pages = into(pages, page_id, form.split(content))
        return result

    return Function(gather_page, (PAGES, SAME), page), Function(scatter_page, (PAGES, SAME, page), PAGES, (0,))


def state_copy_functions(
    place: Place, form: StateForm, max_running: int, copy: PartitionSpec
) -> tuple[Function, Function]:
    """Return the functions to copy the states of a slot out, as an array of this form, and back in.

    Args:
        form: the form of a copy.
        copy: the partition spec of a copy.
    """

    def read(states: tuple[State, ...], slot: jax.Array) -> tuple[jax.Array, ...]:
        content = gather_state(states, place.local_index(slot, max_running, other=max_running))
        return tuple(place.from_group(array, slot, max_running) for array in content)

    def write(states: tuple[State, ...], slot: jax.Array, content: Sequence[jax.Array]) -> tuple[State, ...]:
        return scatter_state(states, place.local_index(slot, max_running, other=max_running), content)

    specs = tuple(array.spec for array in form.arrays)
    out = place.on_each_device(read, (STATES, SAME), specs)
    into = place.on_each_device(write, (STATES, SAME, specs), STATES)

    def gather_copy(states: tuple[State, ...], slot: jax.Array) -> jax.Array:
        return form.join(out(states, slot))

    def scatter_copy(states: tuple[State, ...], slot: jax.Array, content: jax.Array) -> tuple[State, ...]:
        result: tuple[State, ...] = into(states, slot, form.split(content))
        return result

    return Function(gather_copy, (STATES, SAME), copy), Function(scatter_copy, (STATES, SAME, copy), STATES, (0,))
