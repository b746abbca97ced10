"""The programs of one model, and how each is compiled from shapes alone, without weights and without a device."""

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
from rekindle.core.device.functions import Function, allowing, copies, entering, steps
from rekindle.core.device.inputs import InputLayout
from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.device.place import PAGE, PAGES, ROWS, SAME, WEIGHTS, Place
from rekindle.core.device.sampling.adjustments import no_adjustments
from rekindle.core.device.sampling.constraints import no_masks
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.state import Sizes, empty_state
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import abstract_decoder
from rekindle_kernels.api import Implementation, choose

Program = Callable[..., Any]
"""A compiled function; arguments that it returns in new form are donated.

The step of a bucket: `program(weights, pages, slots, packed) -> (pages, slots, outputs)`.
EMPTY makes the device state of an idle engine: `program() -> (pages, slots)`.
ENTER enters a slot: `program(adjustments, slot, packed) -> adjustments`.
ALLOW sets what is allowed in some slots: `program(allowed, slots, bits) -> allowed`.
GATHER copies a page out of the pool: `program(pages, page_id) -> content`.
SCATTER copies a page into the pool: `program(pages, page_id, content) -> pages`.
"""

EMPTY: Final = "empty"
ENTER: Final = "enter"
ALLOW: Final = "allow"
GATHER: Final = "gather"
SCATTER: Final = "scatter"
Key = Bucket | Literal["empty", "enter", "allow", "gather", "scatter"]
"""The use of a program."""


def program_name(key: Key) -> str:
    """Return a program's name in words, the same in every process."""
    if not isinstance(key, Bucket):
        return key
    steps = "step" if key.steps == 1 else f"{key.steps} steps"
    return f"{steps} of {key.prefill_tokens}+{key.decode_rows}"


def temporary_bytes(program: Program) -> int | None:
    """Return the bytes that a program needs while it runs, beside what it is given and returns; None if unknown."""
    try:
        stats = cast(jax.stages.Compiled, program).memory_analysis()
    except (AttributeError, NotImplementedError, jax.errors.JaxRuntimeError):
        return None
    return None if stats is None else int(stats.temp_size_in_bytes)


class Programs:
    """Compiles the programs of one model, under the settings of JAX that this thread has now.

    Args:
        dtype: of weights and pages.
        place: the devices that the programs are to run on, where all arguments are to be; they need not be attached.
        implementation: of the kernels; None is the best for the device.
        logits_processor: compiled into each step, as `LogitsProcessor.traced` takes it; None for none.

    Raises:
        ValueError: the implementation does not serve such pages on the device, or the processor cannot be traced.

    Attributes:
        implementation: of the kernels, as it was chosen.
        statics: values that are compiled into the programs and are not in the model's config, by name.
        jax_settings: the settings of JAX.
        page_sharding: where a page lies that GATHER returns, and SCATTER takes.
    """

    def __init__(
        self,
        config: ModelConfig,
        sizes: Sizes,
        dtype: jnp.dtype,
        place: Place,
        implementation: Implementation | None = None,
        logits_processor: Callable[[Any, Any], Any] | None = None,
    ):
        self.jax_settings = JaxSettings.here()
        pool = config.pool(sizes.num_pages, sizes.page_size, place.tensor)
        self.implementation = kernels = choose(place.first.platform, pool, dtype, implementation)
        abstract = abstract_decoder(config, dtype, kernels, place.shards[0])
        self._weights = [place.whole(form, WEIGHTS) for form in abstract.forms]
        self._place = place
        self.statics: dict[str, int | str] = asdict(sizes) | {
            "dtype": dtype.name,
            "kernels": kernels,
            "tensor": place.tensor,
            "data": place.data,
        }
        processor = self._traced(logits_processor, config.vocab_size)
        if processor is not None:
            self.statics["logits_processor"] = processor.name
        empty = partial(empty_state, config, sizes, dtype, kernels, place.tensor)
        with self.jax_settings.applied():
            pages, slots = jax.eval_shape(empty)
        self._group_slots = slots
        self._slots = jax.tree.map(lambda rows: place.whole(rows, ROWS), slots)
        self._pages = tuple(place.whole(layer, PAGES) for layer in pages)
        self._heads = heads = place.heads(config.attention.heads, config.attention.kv_heads)
        # One process keeps the copies of all: it needs whole pages, and gives them to the others.
        page = PAGE if heads is None and place.processes == 1 else SAME
        self.page_sharding = place.sharding(page)
        gathered, scattered = copies(place, heads, kernels, sizes.num_pages, page)
        self._functions: dict[Any, Function] = {
            Bucket: steps(place, abstract, sizes, kernels, processor),
            EMPTY: Function(place.mapped(empty, (), (PAGES, ROWS)), (), (PAGES, ROWS)),
            ENTER: entering(place, sizes.max_running),
            ALLOW: allowing(place, sizes.max_running),
            GATHER: gathered,
            SCATTER: scattered,
        }

    @property
    def page(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a page over all layers, as GATHER returns it, with each head once."""
        _, sides, heads, page_size, width = self._pages[0].shape
        heads = heads if self._heads is None else len(self._heads.first)
        return jax.ShapeDtypeStruct((len(self._pages), sides, heads, page_size, width), self._pages[0].dtype)

    @property
    def copy_bytes(self) -> int:
        """The bytes of a copy of a page."""
        return _bytes([self.page])

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights on the device."""
        return _bytes(self._weights)

    @property
    def page_bytes(self) -> int:
        """The bytes of a page over all layers, as the kernels store it."""
        return _bytes([jax.ShapeDtypeStruct(layer.shape[1:], layer.dtype) for layer in self._pages])

    @property
    def slot_bytes(self) -> int:
        """The bytes of all slots of a group."""
        return _bytes(jax.tree.leaves(self._group_slots))

    def arguments(self, key: Key) -> dict[str, Any]:
        """Return the shapes of what a program takes, by name and in order."""
        match key:
            case "empty":
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
            case Bucket():
                packed = np.tile(InputLayout.of(key, self._group_slots).padding(), self._place.data)
                return {"weights": self._weights, "pages": self._pages, "slots": self._slots, "packed": packed}

    def check_here(self, key: Key, arguments: Sequence[Any]) -> None:
        """Check that arguments lie on the devices of the programs, if they were put anywhere.

        Raises:
            RuntimeError: they lie on others.
        """
        for name, argument in zip(self.arguments(key), arguments, strict=True):
            for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
                put = isinstance(leaf, jax.Array) and leaf.committed
                if put and leaf.devices() != set(self._place.devices):
                    raise RuntimeError(
                        f"the program {program_name(key)!r} runs on {self._place}, and {name}{keystr(path)} is on "
                        f"{', '.join(sorted(map(str, leaf.devices())))}: put it where the program runs"
                    )

    def lowered(self, key: Key, arguments: Sequence[Any] | None = None) -> jax.stages.Lowered:
        """Trace and lower one program, which can take seconds.

        Args:
            arguments: to lower the program for others than `arguments(key)`.
        """
        if arguments is None:
            into = self._function(key).into
            arguments = [
                self._placed(each, kind) for each, kind in zip(self.arguments(key).values(), into, strict=True)
            ]
        with self.jax_settings.applied():
            return self._jitted(key).lower(*arguments)

    def compiled(self, key: Key, arguments: Sequence[Any] | None = None) -> Program:
        """Lower a program and compile it, which can take many seconds; see `lowered`."""
        with self.jax_settings.applied():
            return self.lowered(key, arguments).compile()

    def _traced(self, logits_processor: Callable[[Any, Any], Any] | None, vocab_size: int) -> LogitsProcessor | None:
        if logits_processor is None:
            return None
        with self.jax_settings.applied():
            return LogitsProcessor.traced(logits_processor, vocab_size)

    def _jitted(self, key: Key) -> jax.stages.Wrapped:
        about = self._function(key)
        function = partial(about.function, bucket=key) if isinstance(key, Bucket) else about.function
        # Several processes compile parts of one program, which has one name.
        unique = secrets.token_hex(8) if self._place.processes == 1 else "shared"
        named = _named(function, program_name(key), unique)
        out = jax.tree.map(self._place.sharding, about.out, is_leaf=_is_kind)
        return jax.jit(named, donate_argnums=about.donated, out_shardings=out)

    def _function(self, key: Key) -> Function:
        return self._functions[type(key) if isinstance(key, Bucket) else key]

    def _placed(self, argument: Any, kind: PartitionSpec) -> Any:
        sharding = self._place.sharding(kind)
        return jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding), argument)


def _is_kind(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def _bytes(arrays: Sequence[Any]) -> int:
    """Return the bytes of arrays of these shapes together."""
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)


def _named(function: Callable[..., Any], name: str, unique: str) -> Callable[..., Any]:
    """Return a function under a name that no other program ever had, if `unique` is what no other one had.

    JAX's persistent compilation cache knows programs by their names too. So nothing of ours is ever found there: what
    is loaded from there cannot be serialized again with its code, and would spoil the executable store.
    """

    @wraps(function)
    def named(*arguments: Any) -> Any:
        return function(*arguments)

    named.__name__ = f"rekindle_{re.sub('[^a-z0-9]+', '_', name)}_{unique}"
    return named
