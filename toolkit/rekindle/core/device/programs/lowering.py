"""Programs of a model, compiled from shapes alone, without weights and without a device."""

import math
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial, wraps
from typing import Any, Final, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.tree_util import keystr

from rekindle.core.buckets import Bucket
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.device.page_form import PageForm, StateForm
from rekindle.core.device.place import PAGE, PAGES, ROWS, SAME, WEIGHTS, Place
from rekindle.core.device.programs.adapter_room import AdapterRoom
from rekindle.core.device.programs.functions import (
    SLOTS,
    Function,
    adapt_function,
    allow_function,
    copy_functions,
    enter_function,
    lens_function,
    look_function,
    state_copy_functions,
    steer_function,
    step_function,
)
from rekindle.core.device.sampling.adjustments import no_adjustments
from rekindle.core.device.sampling.constraints import no_masks
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.state import Sizes, empty_state
from rekindle.core.models.adapters.products import NO_ROOM, AdapterSizes
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import abstract_decoder
from rekindle.core.models.inspection.look import LENS_ROWS, Look, LookInputs
from rekindle.core.models.taps.interventions import Interventions
from rekindle.core.models.weights.form import WeightForm, held_bytes
from rekindle.core.models.weights.requests import JoinedTensors
from rekindle_kernels.api import Implementation, choose_for_all

Program = Callable[..., Any]
"""A compiled function. Arguments returned in updated form are donated.

The step of a bucket: `program(weights, pages, slots, packed) -> (pages, slots, outputs)`.
EMPTY creates the device state of an idle engine: `program() -> (pages, slots)`.
ENTER fills a slot's adjustments: `program(adjustments, slot, packed) -> adjustments`.
ALLOW sets the allowed-token masks of some slots: `program(allowed, slots, bits) -> allowed`.
GATHER copies a page out of the pool: `program(pages, page_id) -> content`.
SCATTER copies a page into the pool: `program(pages, page_id, content) -> pages`.
GATHER_STATE copies the state of a slot, over all layers: `program(states, slot) -> content`.
SCATTER_STATE copies a state into a slot: `program(states, slot, content) -> states`.
ADAPT puts an adapter into a slot: `program(adapters, slot, content) -> adapters`. The step of a bucket with adapters
takes them after the weights.
UNSTEERED creates interventions of no request: `program() -> interventions`. The step of a steered bucket takes them
before the pages.
STEER puts interventions into a slot: `program(interventions, slot, content) -> interventions`.
A look computes activations of a sequence: `program(weights, inputs) -> (states, patterns)`.
LENS computes likely tokens from activations: `program(weights, hidden) -> (ids, logprobs)`.
"""

EMPTY: Final = "empty"
ENTER: Final = "enter"
ALLOW: Final = "allow"
GATHER: Final = "gather"
SCATTER: Final = "scatter"
GATHER_STATE: Final = "gather state"
SCATTER_STATE: Final = "scatter state"
ADAPT: Final = "adapt"
LENS: Final = "lens"
UNSTEERED: Final = "unsteered"
STEER: Final = "steer"
Key = (
    Bucket
    | Look
    | Literal["empty", "enter", "allow", "gather", "scatter", "gather state", "scatter state"]
    | Literal["adapt", "lens", "unsteered", "steer"]
)
"""The use of a program."""


def program_name(key: Key) -> str:
    """Return a program's readable name, the same in every process."""
    if isinstance(key, str):
        return key
    if isinstance(key, Look):
        return f"look at {key.tokens} tokens with {key.states} states and {key.patterns} patterns"
    steps = "step" if key.steps == 1 else f"{key.steps} steps"
    return (
        f"{steps} of {key.prefill_tokens}+{key.decode_rows}{' with adapters' * key.adapters}{', steered' * key.steered}"
    )


def temporary_bytes(program: Program) -> int | None:
    """Return the temporary bytes of a program's run, without arguments and results; None if unknown."""
    try:
        stats = cast(jax.stages.Compiled, program).memory_analysis()
    except (AttributeError, NotImplementedError, jax.errors.JaxRuntimeError):
        return None
    return None if stats is None else int(stats.temp_size_in_bytes)


class Programs:
    """Compiler of one model's programs, under the JAX settings of the constructing thread.

    Args:
        form: the form of the weights; its dtype is that of the pages.
        place: the devices of the programs and of all arguments; they need not be attached.
        implementation: the kernel implementation; None is the best for the device.
        logits_processor: a function for `LogitsProcessor.trace`, compiled into each step; None for no processor.
        adapters: the room for adapters.

    Raises:
        ValueError: the implementation does not support these pages on the device, or the processor cannot be traced.

    Attributes:
        implementation: the selected kernel implementation.
        statics: values compiled into the programs beyond the model's config, by name.
        jax_settings: the settings of JAX.
        page_sharding: the sharding of a page from GATHER or for SCATTER.
        adapters: the room for adapters.
        widened_bytes: most bytes of a packed matrix widened in a step, or of its partial sums.
    """

    def __init__(
        self,
        config: ModelConfig,
        sizes: Sizes,
        form: WeightForm,
        place: Place,
        implementation: Implementation | None = None,
        logits_processor: Callable[[Any, Any], Any] | None = None,
        kv_dtype: jnp.dtype | None = None,
        adapters: AdapterSizes = NO_ROOM,
    ):
        self.jax_settings = JaxSettings.here()
        pools = config.pools(sizes.num_pages, sizes.page_size, place.tensor)
        dtype = form.dtype
        kv_dtype = dtype if kv_dtype is None else kv_dtype
        self.implementation = kernels = choose_for_all(place.first.platform, pools, kv_dtype, implementation)
        abstract = abstract_decoder(config, form, kernels, place.shards[0])
        self._weights = [place.global_shape(form, WEIGHTS) for form in abstract.forms]
        self._config, self._place = config, place
        self.widened_bytes = 0 if kernels == "cpu" else _widened_bytes(abstract.requests, form)
        self.statics: dict[str, int | str] = asdict(sizes) | {
            "dtype": dtype.name,
            "kv_dtype": kv_dtype.name,
            "kernels": kernels,
            "tensor": place.tensor,
            "data": place.data,
        }
        if form.kinds:
            self.statics["packed"] = f"{form} ({form.digest})"
        processor = self._trace(logits_processor, config.vocab_size)
        if processor is not None:
            self.statics["logits_processor"] = processor.name
        empty = partial(empty_state, config, sizes, kv_dtype, kernels, place.tensor)
        with self.jax_settings.apply():
            pages, slots = jax.eval_shape(empty)
        self._group_slots = slots
        self._slots = _with_specs(place.global_shape, slots, SLOTS)
        self._pages = tuple(place.global_shape(layer, PAGES) for layer in pages)
        self._page_form = page_form = PageForm.of(config, self._pages, place)
        self._state_form = StateForm.of(config, place)
        # Of several processes, one keeps all copies: it needs whole pages, and sends them to the others.
        is_divided = page_form.has_head_axis and self._state_form.copy.shape[-1] % place.tensor == 0
        page = PAGE if is_divided and place.processes == 1 else SAME
        self.page_sharding = place.sharding(page)
        gather_page, scatter_page = copy_functions(place, page_form, kernels, sizes.num_pages, page)
        self.adapters = AdapterRoom(config, adapters, dtype, kernels, place)
        self._step = partial(step_function, place, abstract, sizes, processor)
        self._look = partial(look_function, place, abstract)
        self._intervention = Interventions.forms((), config.hidden_size)
        group = Interventions.forms((sizes.max_running + 1,), config.hidden_size)
        self._interventions = _with_specs(place.global_shape, group, ROWS)
        none = partial(Interventions.none, (sizes.max_running + 1,), config.hidden_size)
        self._functions: dict[str, Function] = {
            UNSTEERED: Function(place.on_each_device(none, (), ROWS), (), ROWS),
            STEER: steer_function(place, sizes.max_running),
            LENS: lens_function(place, abstract),
            ADAPT: adapt_function(place),
            EMPTY: Function(place.on_each_device(empty, (), (PAGES, SLOTS)), (), (PAGES, SLOTS)),
            ENTER: enter_function(place, sizes.max_running),
            ALLOW: allow_function(place, sizes.max_running),
            GATHER: gather_page,
            SCATTER: scatter_page,
        }
        if slots.states:
            gather_state, scatter_state = state_copy_functions(place, self._state_form, sizes.max_running, page)
            self._functions |= {GATHER_STATE: gather_state, SCATTER_STATE: scatter_state}

    @property
    def page(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a page over all layers from GATHER, with each head once."""
        return self._page_form.array

    @property
    def copy_bytes(self) -> int:
        """The bytes of one page copy."""
        return _bytes([self.page])

    @property
    def state(self) -> jax.ShapeDtypeStruct | None:
        """The shape and dtype of a copy of a request's states; None for a model without states."""
        return self._state_form.copy if self._group_slots.states else None

    @property
    def state_bytes(self) -> int:
        """The bytes of one copy of a state; 0 for a model without states."""
        return 0 if self.state is None else _bytes([self.state])

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights over the devices of a group."""
        return sum(held_bytes(array, self._place.first.platform) for array in self._weights)

    @property
    def page_bytes(self) -> int:
        """The bytes of a page over all layers, in the kernels' format."""
        return _bytes([jax.ShapeDtypeStruct(layer.shape[1:], layer.dtype) for layer in self._pages])

    @property
    def slot_bytes(self) -> int:
        """The bytes of all slots of a group."""
        return _bytes(jax.tree.leaves(self._group_slots))

    @property
    def adapter_bytes(self) -> int:
        """The bytes of the arrays of all adapters over the devices of a group."""
        return _bytes(jax.tree.leaves(self.adapters.all))

    def arguments(self, key: Key) -> dict[str, Any]:
        """Return the shapes of a program's arguments, by name and in order."""
        match key:
            case "adapt":
                return {"adapters": self.adapters.all, "slot": np.int32(0), "content": self.adapters.one}
            case "empty" | "unsteered":
                return {}
            case "enter":
                adjustments = self._slots.adjustments
                packed = no_adjustments(adjustments.bias.shape[1])
                return {"adjustments": adjustments, "slot": np.int32(0), "packed": packed}
            case "allow":
                slots, bits = no_masks(self._group_slots.allowed.shape[1], null_slot=0)
                return {"allowed": self._slots.allowed, "slots": slots, "bits": bits}
            case "gather":
                return {"pages": self._pages, "page_id": np.int32(0)}
            case "scatter":
                return {"pages": self._pages, "page_id": np.int32(0), "content": self.page}
            case "gather state":
                return {"states": self._slots.states, "slot": np.int32(0)}
            case "scatter state":
                return {"states": self._slots.states, "slot": np.int32(0), "content": self.state}
            case "steer":
                return {"interventions": self._interventions, "slot": np.int32(0), "content": self._intervention}
            case "lens":
                hidden = jax.ShapeDtypeStruct((LENS_ROWS, self._config.hidden_size), jnp.dtype(jnp.float32))
                return {"weights": self._weights, "hidden": hidden}
            case Look():
                return {"weights": self._weights, "inputs": LookInputs.forms(self._config, key)}
            case Bucket():
                packed = np.tile(InputLayout.of(key, self._group_slots).padding(), self._place.data)
                further = {"adapters": self.adapters.all} if key.adapters else {}
                further |= {"interventions": self._interventions} if key.steered else {}
                state = {"pages": self._pages, "slots": self._slots, "packed": packed}
                return {"weights": self._weights, **further, **state}

    def check_devices(self, key: Key, arguments: Sequence[Any]) -> None:
        """Check the devices of all committed arguments.

        Raises:
            RuntimeError: an argument lies on other devices than the programs.
        """
        for name, argument in zip(self.arguments(key), arguments, strict=True):
            for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
                is_committed = isinstance(leaf, jax.Array) and leaf.committed
                if is_committed and leaf.devices() != set(self._place.devices):
                    raise RuntimeError(
                        f"the program {program_name(key)!r} runs on {self._place}, but {name}{keystr(path)} is on "
                        f"{', '.join(sorted(map(str, leaf.devices())))}: move it to the program's devices"
                    )

    def lower(self, key: Key, arguments: Sequence[Any] | None = None) -> jax.stages.Lowered:
        """Trace and lower one program, which can take seconds.

        Args:
            arguments: arrays or shapes to use instead of `arguments(key)`.
        """
        if arguments is None:
            into = self._function(key).into
            arguments = [
                self._with_sharding(each, kind) for each, kind in zip(self.arguments(key).values(), into, strict=True)
            ]
        with self.jax_settings.apply():
            return self._jit(key).lower(*arguments)

    def compile(self, key: Key, arguments: Sequence[Any] | None = None) -> Program:
        """Lower a program and compile it, which can take many seconds; see `lower`."""
        with self.jax_settings.apply():
            return self.lower(key, arguments).compile()

    def _trace(self, logits_processor: Callable[[Any, Any], Any] | None, vocab_size: int) -> LogitsProcessor | None:
        if logits_processor is None:
            return None
        with self.jax_settings.apply():
            return LogitsProcessor.trace(logits_processor, vocab_size)

    def _jit(self, key: Key) -> jax.stages.Wrapped:
        spec = self._function(key)
        # Several processes compile parts of one program under one name.
        unique = secrets.token_hex(8) if self._place.processes == 1 else "shared"
        function = _renamed(spec.function, program_name(key), unique)
        out = jax.tree.map(self._place.sharding, spec.out, is_leaf=_is_kind)
        return jax.jit(function, donate_argnums=spec.donated, out_shardings=out)

    def _function(self, key: Key) -> Function:
        if isinstance(key, Bucket):
            return self._step(key, self.adapters)
        return self._look(key) if isinstance(key, Look) else self._functions[key]

    def _with_sharding(self, argument: Any, kind: Any) -> Any:
        def with_sharding(each: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=self._place.sharding(spec))

        return _with_specs(with_sharding, argument, kind)


def _with_specs(function: Callable[[Any, PartitionSpec], Any], arrays: Any, specs: Any) -> Any:
    """Map each array of a tree with its partition spec; a spec stands for all arrays below its place."""
    return jax.tree.map(
        lambda spec, part: jax.tree.map(lambda each: function(each, spec), part), specs, arrays, is_leaf=_is_kind
    )


def _is_kind(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def _bytes(arrays: Sequence[Any]) -> int:
    """Return the total bytes of arrays of these shapes."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def _widened_bytes(requests: Sequence[JoinedTensors], form: WeightForm) -> int:
    """Return the bytes of the largest packed matrix in the dtype of its products."""
    size = 2 if form.activations == "bfloat16" else 4
    packed = (request.plain[-2:] for request in requests if request.storage(form) is not None)
    return size * max(map(math.prod, packed), default=0)


def _renamed(function: Callable[..., Any], name: str, unique: str) -> Callable[..., Any]:
    """Return a function under a globally unique name, given a unique suffix.

    The name is part of the key in JAX's persistent compilation cache. A unique name keeps JAX from loading a program
    from there: without its code, it could not be saved to the executable store.
    """

    @wraps(function)
    def program(*arguments: Any) -> Any:
        return function(*arguments)

    program.__name__ = f"rekindle_{re.sub('[^a-z0-9]+', '_', name)}_{unique}"
    return program
