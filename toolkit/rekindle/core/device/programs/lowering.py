"""Programs of a model, compiled from shapes alone, without weights and without a device."""

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import wraps
from typing import Any, Final, cast

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import keystr

from rekindle.core.buckets import Bucket
from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.device.place import Place
from rekindle.core.device.programs.functions import (
    Key,
    ProgramFunction,
    embeds,
    look_function,
    program_name,
    step_function,
)
from rekindle.core.device.programs.shapes import ModelShapes, is_spec, with_specs
from rekindle.core.device.programs.vision_shapes import VisionSizes
from rekindle.core.device.sampling.processing import LogitsProcessor
from rekindle.core.device.state import Sizes
from rekindle.core.models.adapters.products import NO_ROOM, AdapterSizes
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.inspection.inputs import Look
from rekindle.core.models.weights.form import WeightForm
from rekindle_kernels.api import Implementation

Program = Callable[..., Any]
"""A compiled function. Arguments returned in updated form are donated."""

GRAPHS: Final = "xla_gpu_enable_command_buffer"
COMMANDS: Final = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"
"""What a CUDA graph of XLA holds: its defaults, and conditions and loops, at which the host waits for the device."""


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
        vision: the tower and its sizes; None for a model without images.

    Raises:
        ValueError: the implementation does not support these pages on the device, or the processor cannot be traced.

    Attributes:
        shapes: the arrays of the model.
        statics: values compiled into the programs beyond the model's config, by name.
        jax_settings: the settings of JAX.
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
        vision: VisionSizes | None = None,
    ):
        self.jax_settings = JaxSettings.here()
        kv_dtype = form.dtype if kv_dtype is None else kv_dtype
        self._processor: LogitsProcessor | None = None
        with self.jax_settings.apply():
            self.shapes = ModelShapes.of(config, sizes, form, place, implementation, kv_dtype, adapters, vision)
            if logits_processor is not None:
                self._processor = LogitsProcessor.trace(logits_processor, config.vocab_size)
        self.statics: dict[str, int | str] = asdict(sizes) | {
            "dtype": form.dtype.name,
            "kv_dtype": kv_dtype.name,
            "kernels": self.shapes.implementation,
            "tensor": place.tensor,
            "data": place.data,
        }
        if form.kinds:
            self.statics["packed"] = f"{form} ({form.digest})"
        if self._processor is not None:
            self.statics["logits_processor"] = self._processor.name
        self._functions: dict[Key, ProgramFunction] = {}

    def statics_of(self, key: Key) -> Mapping[str, int | str]:
        """Return the values compiled into one program beyond the model's config, by name."""
        vision = self.shapes.vision
        return self.statics | {"tower": repr(vision.sizes.config)} if embeds(key) and vision else self.statics

    def arguments(self, key: Key) -> Mapping[str, Any]:
        """Return the shapes of a program's arguments, by name and in order."""
        return self._function(key).arguments

    def check_devices(self, key: Key, arguments: Sequence[Any]) -> None:
        """Check the devices of all committed arguments.

        Raises:
            RuntimeError: an argument lies on other devices than the programs.
        """
        place = self.shapes.place
        for name, argument in zip(self.arguments(key), arguments, strict=True):
            for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
                is_committed = isinstance(leaf, jax.Array) and leaf.committed
                if is_committed and leaf.devices() != set(place.devices):
                    raise RuntimeError(
                        f"the program {program_name(key)!r} runs on {place}, but {name}{keystr(path)} is on "
                        f"{', '.join(sorted(map(str, leaf.devices())))}: move it to the program's devices"
                    )

    def lower(self, key: Key, arguments: Sequence[Any] | None = None) -> jax.stages.Lowered:
        """Trace and lower one program, which can take seconds.

        Args:
            arguments: arrays or shapes to use instead of `arguments(key)`.
        """
        if arguments is None:
            function = self._function(key)
            arguments = [
                self._with_sharding(each, spec)
                for each, spec in zip(function.arguments.values(), function.into, strict=True)
            ]
        with self.jax_settings.apply(), self._as_device():
            return self._jit(key).lower(*arguments)

    def compile(self, key: Key, arguments: Sequence[Any] | None = None) -> Program:
        """Lower a program and compile it, which can take many seconds; see `lower`."""
        platform, flags = self.shapes.place.first.platform, os.environ.get("XLA_FLAGS", "")
        takes_conditions = platform in ("gpu", "cuda") and GRAPHS not in flags
        options: dict[str, str | bool] | None = {GRAPHS: COMMANDS} if takes_conditions else None
        with self.jax_settings.apply():
            return self.lower(key, arguments).compile(compiler_options=options)

    def _as_device(self) -> AbstractContextManager[Any]:
        """Return a context to trace and lower Pallas kernels for the devices of the place.

        Our tile sizes, and JAX's lowering, ask the default device. It may be another one, or a CPU.
        """
        first = self.shapes.place.first
        return jax.default_device(first) if self.shapes.implementation in ("gpu", "tpu") else nullcontext()

    def _jit(self, key: Key) -> jax.stages.Wrapped:
        spec = self._function(key)
        # Several processes compile parts of one program under one name.
        unique = secrets.token_hex(8) if self.shapes.place.processes == 1 else "shared"
        function = _renamed(spec.function, program_name(key), unique)
        out = jax.tree.map(self.shapes.place.sharding, spec.out, is_leaf=is_spec)
        return jax.jit(function, donate_argnums=spec.donated, out_shardings=out)

    def _function(self, key: Key) -> ProgramFunction:
        if key not in self._functions:
            self._functions[key] = self._build(key)
        return self._functions[key]

    def _build(self, key: Key) -> ProgramFunction:
        if isinstance(key, Bucket):
            return step_function(self.shapes, key, self._processor)
        return look_function(self.shapes, key) if isinstance(key, Look) else key.build(self.shapes)

    def _with_sharding(self, argument: Any, kind: Any) -> Any:
        def with_sharding(each: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=self.shapes.place.sharding(spec))

        return with_specs(with_sharding, argument, kind)


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
