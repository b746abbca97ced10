"""Programs of a model, on one device or on a mesh. A program is one record: its name, its function, its arguments."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.core.buckets import PIECE, Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.place import PAGE, PAGES, ROWS, SAME, STATES, WEIGHTS
from rekindle.core.device.programs.shapes import SLOTS, ModelShapes
from rekindle.core.device.programs.vision_shapes import VisionShapes
from rekindle.core.device.sampling.adjustments import Adjustments, enter_slot, no_adjustments
from rekindle.core.device.sampling.constraints import no_masks
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.state import Content, Pages, gather, gather_state, scatter, scatter_state
from rekindle.core.models.adapters.rows import Adapters, Stacks
from rekindle.core.models.inspection.inputs import LENS_ROWS, Look, LookInputs
from rekindle.core.models.mixing import State
from rekindle.core.models.taps.interventions import Interventions
from rekindle.core.models.vision.patches import Patches
from rekindle.core.page import NULL_PAGE


@dataclass(frozen=True, slots=True)
class ProgramFunction:
    """The function of a program for one model, with the sharding of its arguments and results.

    Attributes:
        arguments: the shapes of the arguments, by name and in order.
        into, out: the partition specs of arguments and results, from `place`; each for all arrays of an argument, or
            a tree of them.
        donated: the indices of donated arguments, which come back in updated form.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    into: tuple[Any, ...]
    out: Any
    donated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A program beside the steps and looks of a model. The record is the key of the program, too.

    Attributes:
        name: the readable name, the same in every process.
        build: returns the function for a model.
        part: the part of `DeviceState` in its first argument, such as "slots.adjustments"; "" for none.
    """

    name: str
    build: Callable[[ModelShapes], ProgramFunction] = field(repr=False, compare=False)
    part: str = ""

    def __str__(self) -> str:
        return self.name


Key: TypeAlias = Bucket | Look | DeviceProgram
"""The use of a program."""


def program_name(key: Key) -> str:
    """Return a program's readable name, the same in every process."""
    if isinstance(key, DeviceProgram):
        return key.name
    if isinstance(key, Look):
        images = ", with images" * key.pictures
        return f"look at {key.tokens} tokens with {key.states} states and {key.patterns} patterns{images}"
    return (
        f"step of {key.prefill_tokens}+{key.decode_rows}{' with adapters' * key.adapters}{', steered' * key.steered}"
        f"{', with images' * key.pictures}{', with draft head' * key.proposes}"
        f"{', with windows' * key.windows}"
    )


def step_function(shapes: ModelShapes, bucket: Bucket, processor: LogitsProcessor | None) -> ProgramFunction:
    """Return the step of a bucket: `(weights, pages, slots, packed) -> (pages, slots, outputs)`.

    The step of a bucket with adapters takes them after the weights; a steered one takes interventions, and one with
    images the buffer of their embeddings, before the pages.
    """
    room, max_logprobs = shapes.adapters, shapes.state.sizes.max_logprobs

    def run(weights: list[jax.Array], *arguments: Any) -> Any:
        from rekindle.core.device.step import step  # only a program that is traced needs it

        *further, pages, slots, packed = arguments
        adapters = Adapters(room.products, further.pop(0), room.sizes) if bucket.adapters else None
        interventions = further.pop(0) if bucket.steered else None
        embeddings = further.pop(0) if bucket.pictures else None
        decoder = shapes.decoder.with_weights(weights)
        return step(decoder, pages, slots, packed, bucket, max_logprobs, processor, adapters, interventions, embeddings)

    further: dict[str, Any] = {"adapters": room.all} if bucket.adapters else {}
    further |= {"interventions": shapes.interventions} if bucket.steered else {}
    further |= {"embeddings": _vision(shapes).buffer} if bucket.pictures else {}
    packed = np.tile(InputLayout.of(bucket, shapes.state.group_slots).padding(), shapes.place.data)
    arguments = {
        "weights": shapes.weights,
        **further,
        "pages": shapes.state.pages,
        "slots": shapes.state.slots,
        "packed": packed,
    }
    specs = [WEIGHTS] * bucket.adapters + [ROWS] * bucket.steered + [SAME] * bucket.pictures
    into, out = (WEIGHTS, *specs, PAGES, SLOTS, ROWS), (PAGES, SLOTS, ROWS)
    function = shapes.place.on_each_device(run, into, out)
    return ProgramFunction(function, arguments, into, out, (len(into) - 3, len(into) - 2))


def _vision(shapes: ModelShapes) -> VisionShapes:
    assert shapes.vision is not None, "a program with images, of a model without a tower"
    return shapes.vision


def look_function(shapes: ModelShapes, key: Look) -> ProgramFunction:
    """Return the look at a sequence: `(weights, inputs) -> (states, patterns)`."""

    def run(weights: list[jax.Array], inputs: LookInputs) -> tuple[jax.Array, jax.Array]:
        from rekindle.core.models.inspection.look import look

        return look(shapes.decoder.with_weights(weights), inputs, key.states)

    width = _vision(shapes).buffer.shape[1] if key.pictures else 0
    return _of_weights(shapes, run, {"inputs": LookInputs.forms(shapes.config, key, width)})


def _lens(shapes: ModelShapes) -> ProgramFunction:
    def run(weights: list[jax.Array], hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        from rekindle.core.models.inspection.look import lens

        return lens(shapes.decoder.with_weights(weights), hidden)

    hidden = jax.ShapeDtypeStruct((LENS_ROWS, shapes.config.hidden_size), jnp.dtype(jnp.float32))
    return _of_weights(shapes, run, {"hidden": hidden})


def _of_weights(shapes: ModelShapes, run: Callable[..., Any], inputs: Mapping[str, Any]) -> ProgramFunction:
    into = (WEIGHTS, SAME)
    function = shapes.place.on_each_device(run, into, SAME)
    return ProgramFunction(function, {"weights": shapes.weights, **inputs}, into, SAME)


def _empty(shapes: ModelShapes) -> ProgramFunction:
    out = (PAGES, SLOTS)
    return ProgramFunction(shapes.place.on_each_device(shapes.state.empty, (), out), {}, (), out)


def _enter(shapes: ModelShapes) -> ProgramFunction:
    def enter(adjustments: Adjustments, slot: jax.Array, packed: jax.Array) -> Adjustments:
        return enter_slot(adjustments, _own_slot(shapes, slot), packed)

    adjustments = shapes.state.slots.adjustments
    packed = no_adjustments(adjustments.bias.shape[1])
    arguments = {"adjustments": adjustments, "slot": np.int32(0), "packed": packed}
    return _of_rows(shapes, enter, arguments, donated=(0,))


def _allow(shapes: ModelShapes) -> ProgramFunction:
    masks, words = shapes.state.group_slots.allowed.shape
    null_slot = shapes.state.sizes.max_running

    def allow(rows: jax.Array, places: jax.Array, bits: jax.Array) -> jax.Array:
        return rows.at[shapes.place.local_index(places, masks, other=null_slot)].set(bits)

    places, bits = no_masks(words, null_slot=0)
    arguments = {"allowed": shapes.state.slots.allowed, "places": places, "bits": bits}
    return _of_rows(shapes, allow, arguments, donated=(0,))


def _steer(shapes: ModelShapes) -> ProgramFunction:
    def steer(every: Interventions, slot: jax.Array, content: Interventions) -> Interventions:
        own = _own_slot(shapes, slot)
        result: Interventions = jax.tree.map(
            lambda array, one: lax.dynamic_update_index_in_dim(array, one, own, 0), every, content
        )
        return result

    arguments = {"interventions": shapes.interventions, "slot": np.int32(0), "content": shapes.intervention}
    return _of_rows(shapes, steer, arguments)


def _of_rows(
    shapes: ModelShapes, run: Callable[..., Any], arguments: Mapping[str, Any], donated: tuple[int, ...] = ()
) -> ProgramFunction:
    """Return a function to change rows of the slots, on the devices of their groups."""
    into = (ROWS, SAME, SAME)
    return ProgramFunction(shapes.place.on_each_device(run, into, ROWS), arguments, into, ROWS, donated)


def _own_slot(shapes: ModelShapes, slot: jax.Array) -> jax.Array:
    """Return the row of a slot in its group; in other groups, that of the null slot."""
    most = shapes.state.sizes.max_running
    return shapes.place.local_index(slot, most, other=most)


def _unsteered(shapes: ModelShapes) -> ProgramFunction:
    def none() -> Interventions:
        return Interventions.none((shapes.state.sizes.max_running + 1,), shapes.config.hidden_size)

    return ProgramFunction(shapes.place.on_each_device(none, (), ROWS), {}, (), ROWS)


def _adapt(shapes: ModelShapes) -> ProgramFunction:
    """Return the function to put an adapter into a slot. Its argument stays usable, should the program fail."""

    def adapt(stacks: Stacks, slot: jax.Array, content: Stacks) -> Stacks:
        result: Stacks = jax.tree.map(
            lambda stack, array: lax.dynamic_update_index_in_dim(stack, array, slot, 0), stacks, content
        )
        return result

    into = (WEIGHTS, SAME, WEIGHTS)
    arguments = {"adapters": shapes.adapters.all, "slot": np.int32(0), "content": shapes.adapters.one}
    return ProgramFunction(shapes.place.on_each_device(adapt, into, WEIGHTS), arguments, into, WEIGHTS)


def _embed(length: int, shapes: ModelShapes) -> ProgramFunction:
    """Return the function to embed a segment of so many patches. Its buffer stays usable, should the program fail."""
    vision = _vision(shapes)

    def embed(weights: list[jax.Array], buffer: jax.Array, rows: jax.Array, patches: Patches) -> jax.Array:
        return buffer.at[rows].set(vision.tower.with_weights(weights)(patches))

    of_segment = {"rows": vision.rows(length), "patches": vision.patches(length)}
    arguments = {"tower": vision.weights, "buffer": vision.buffer, **of_segment}
    into = (SAME, SAME, SAME, SAME)
    return ProgramFunction(shapes.place.on_each_device(embed, into, SAME), arguments, into, SAME)


def _gather_embeddings(shapes: ModelShapes) -> ProgramFunction:
    buffer, rows = _vision(shapes).buffer, np.zeros(PIECE, np.int32)

    def read(buffer: jax.Array, rows: jax.Array) -> jax.Array:
        return buffer[rows]

    into = (SAME, SAME)
    return ProgramFunction(shapes.place.on_each_device(read, into, SAME), {"buffer": buffer, "rows": rows}, into, SAME)


def _scatter_embeddings(shapes: ModelShapes) -> ProgramFunction:
    buffer, rows = _vision(shapes).buffer, np.zeros(PIECE, np.int32)

    def write(buffer: jax.Array, rows: jax.Array, content: jax.Array) -> jax.Array:
        return buffer.at[rows].set(content)

    into = (SAME, SAME, SAME)
    arguments = {"buffer": buffer, "rows": rows, "content": np.zeros((PIECE, buffer.shape[1]), np.float32)}
    return ProgramFunction(shapes.place.on_each_device(write, into, SAME), arguments, into, SAME)


def _gather(shapes: ModelShapes) -> ProgramFunction:
    place, state = shapes.place, shapes.state
    most = state.sizes.num_pages

    def read(pages: Pages, page_id: jax.Array) -> Content:
        kinds = gather(pages, place.local_index(page_id, most, other=NULL_PAGE), shapes.implementation)
        return tuple(place.from_group(kind, page_id, most) for kind in kinds)

    out = place.on_each_device(read, (PAGES, SAME), PAGE)

    def gather_page(pages: Pages, page_id: jax.Array) -> jax.Array:
        return state.page_form.join(out(pages, page_id))

    return ProgramFunction(gather_page, {"pages": state.pages, "page_id": np.int32(0)}, (PAGES, SAME), state.copy)


def _scatter(shapes: ModelShapes) -> ProgramFunction:
    place, state = shapes.place, shapes.state

    def write(pages: Pages, page_id: jax.Array, content: Content) -> Pages:
        local = place.local_index(page_id, state.sizes.num_pages, other=NULL_PAGE)
        return scatter(pages, local, content, shapes.implementation)

    into = place.on_each_device(write, (PAGES, SAME, PAGE), PAGES)

    def scatter_page(pages: Pages, page_id: jax.Array, content: jax.Array) -> Pages:
        result: Pages = into(pages, page_id, state.page_form.split(content))
        return result

    arguments = {"pages": state.pages, "page_id": np.int32(0), "content": state.page}
    return ProgramFunction(scatter_page, arguments, (PAGES, SAME, state.copy), PAGES, (0,))


def _gather_state(shapes: ModelShapes) -> ProgramFunction:
    place, state = shapes.place, shapes.state
    most = state.sizes.max_running

    def read(states: tuple[State, ...], slot: jax.Array) -> tuple[jax.Array, ...]:
        content = gather_state(states, _own_slot(shapes, slot))
        return tuple(place.from_group(array, slot, most) for array in content)

    out = place.on_each_device(read, (STATES, SAME), tuple(array.spec for array in state.state_form.arrays))

    def gather_copy(states: tuple[State, ...], slot: jax.Array) -> jax.Array:
        return state.state_form.join(out(states, slot))

    return ProgramFunction(gather_copy, {"states": state.slots.states, "slot": np.int32(0)}, (STATES, SAME), state.copy)


def _scatter_state(shapes: ModelShapes) -> ProgramFunction:
    place, state = shapes.place, shapes.state

    def write(states: tuple[State, ...], slot: jax.Array, content: Sequence[jax.Array]) -> tuple[State, ...]:
        return scatter_state(states, _own_slot(shapes, slot), content)

    specs = tuple(array.spec for array in state.state_form.arrays)
    into = place.on_each_device(write, (STATES, SAME, specs), STATES)

    def scatter_copy(states: tuple[State, ...], slot: jax.Array, content: jax.Array) -> tuple[State, ...]:
        result: tuple[State, ...] = into(states, slot, state.state_form.split(content))
        return result

    arguments = {"states": state.slots.states, "slot": np.int32(0), "content": state.state}
    return ProgramFunction(scatter_copy, arguments, (STATES, SAME, state.copy), STATES, (0,))


EMPTY: Final = DeviceProgram("empty", _empty)
"""Creates the device state of an idle engine: `() -> (pages, slots)`."""
ENTER: Final = DeviceProgram("enter", _enter, "slots.adjustments")
"""Fills a slot's adjustments: `(adjustments, slot, packed) -> adjustments`, packed by `pack_adjustments`."""
ALLOW: Final = DeviceProgram("allow", _allow, "slots.allowed")
"""Sets some allowed-token masks: `(allowed, places, bits) -> allowed`, from `masks_of`."""
GATHER: Final = DeviceProgram("gather", _gather, "pages")
"""Copies a page out of the pool: `(pages, page_id) -> content`."""
SCATTER: Final = DeviceProgram("scatter", _scatter, "pages")
"""Copies content from GATHER into a page of the pool: `(pages, page_id, content) -> pages`."""
GATHER_STATE: Final = DeviceProgram("gather state", _gather_state, "slots.states")
"""Copies the state of a slot, over all layers: `(states, slot) -> content`."""
SCATTER_STATE: Final = DeviceProgram("scatter state", _scatter_state, "slots.states")
"""Copies a state from GATHER_STATE into a slot: `(states, slot, content) -> states`."""
GATHER_EMBEDDINGS: Final = DeviceProgram("gather embeddings", _gather_embeddings, "embeddings")
"""Copies `PIECE` embeddings of an image out of the buffer: `(buffer, rows) -> content`."""
SCATTER_EMBEDDINGS: Final = DeviceProgram("scatter embeddings", _scatter_embeddings, "embeddings")
"""Copies content from GATHER_EMBEDDINGS into rows of the buffer: `(buffer, rows, content) -> buffer`."""
ADAPT: Final = DeviceProgram("adapt", _adapt, "adapters")
"""Puts an adapter into a slot: `(adapters, slot, content) -> adapters`, packed by `pack_adapter`."""
UNSTEERED: Final = DeviceProgram("unsteered", _unsteered)
"""Creates interventions of no request: `() -> interventions`."""
STEER: Final = DeviceProgram("steer", _steer, "interventions")
"""Puts interventions into a slot: `(interventions, slot, content) -> interventions`, packed by `pack_changes`."""
LENS: Final = DeviceProgram("lens", _lens)
"""Computes likely tokens from activations: `(weights, hidden) -> (ids, logprobs)`."""


def embed_program(length: int) -> DeviceProgram:
    """Return the program for a segment of an image with so many patches: `(tower, buffer, rows, patches) -> buffer`.

    Rows of padding are the last one of the buffer.
    """
    return DeviceProgram(f"embed {length} patches", partial(_embed, length), "tower")


def embeds(key: Key) -> bool:
    """Return True for a program of the vision tower."""
    return isinstance(key, DeviceProgram) and key.part == "tower"
