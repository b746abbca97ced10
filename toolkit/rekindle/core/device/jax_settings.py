"""JAX settings of Rekindle's threads, independent of the process's settings.

A notebook configures JAX for its programs: 64-bit numbers, checks for NaNs, transfer guards. Such settings could stop
an engine or change its results, so engine threads override some. All other settings with an effect on compilation stay
the user's: a session captures their values when it opens.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final, ParamSpec, TypeVar

import jax

COMPILED_IN: Final = (
    "jax_enable_x64",  # dtypes of everything
    "jax_explicit_x64_dtypes",  # dtypes requested by name
    "jax_numpy_dtype_promotion",  # dtypes of mixed operations
    "jax_allow_f16_reductions",  # dtypes of sums
    "jax_default_matmul_precision",  # precision of products without an explicit one
    "jax_threefry_partitionable",  # random bits
    "jax_threefry_gpu_kernel_lowering",  # the program for random bits
    "jax_use_shardy_partitioner",  # sharding propagation
    "jax_disable_most_optimizations",  # the compiler's effort
    "jax_optimization_level",  # the same
    "jax_exec_time_optimization_effort",  # the same
    "jax_memory_fitting_level",  # the same
    "jax_memory_fitting_effort",  # the same
    "jax_compiler_enable_remat_pass",  # a pass of the compiler
    "jax_enable_pgle",  # compiles with a profile
    "jax_use_simplified_jaxpr_constants",  # whether constants become arguments
    "jax_embedded_constants_max_bytes",  # from this size on
    "jax_ragged_dot_use_ragged_dot_instruction",  # another lowering of one operation
    "jax_ragged_dot_use_gpu_pallas_triton_lowering",  # the same
    "jax_pallas_use_mosaic_gpu",  # the compiler of Pallas kernels
    "jax_pallas_enable_debug_checks",  # checks inside kernels
    "jax_pallas_poison_buffers",  # extra writes in kernels
    "jax_mosaic_allow_hlo",  # operations allowed in kernels
    "jax_use_emit_pipeline_primitive",  # another lowering of kernels
    "jax_error_checking_behavior_nan",  # checks inside programs
    "jax_error_checking_behavior_divide",  # the same
    "jax_error_checking_behavior_oob",  # the same
)
"""Settings in `jax.config` with an effect on compiled programs. Others affect placement, timing, logs or checks."""

OVERRIDES: Final[Mapping[str, Any]] = {
    "jax_enable_x64": False,  # the step uses 32-bit indices throughout
    "jax_disable_jit": False,  # the engine consists of compiled programs
    "jax_debug_nans": False,  # padding may compute NaNs, never read
    "jax_debug_infs": False,  # a banned token's logit is minus infinity
    # A program from JAX's cache has no code to serialize, so it could not be stored. Unique program names prevent hits
    # there (see `lowering`), and these settings prevent writes.
    "jax_persistent_cache_min_compile_time_secs": inf,
    "jax_persistent_cache_enable_xla_caches": "none",
}
"""Rekindle's overrides. Its threads also ignore `jax_transfer_guard`."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class JaxSettings:
    """The JAX settings for the compilation of programs.

    Attributes:
        values: the values of `COMPILED_IN`, by name; None if this version of JAX lacks the setting.
        default_device: the value of `jax_default_device`.
    """

    values: Mapping[str, Any]
    default_device: Any

    @classmethod
    def here(cls) -> "JaxSettings":
        """Return the settings of this thread, with Rekindle's overrides."""
        values = {name: OVERRIDES[name] if name in OVERRIDES else _value(name) for name in COMPILED_IN}
        return cls(values, default_device())

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Apply these settings and Rekindle's overrides to this thread, within a `with` block."""
        with _set(self.values), jax.default_device(self.default_device), overrides():
            yield


@contextmanager
def overrides() -> Iterator[None]:
    """Apply Rekindle's overrides to this thread, within a `with` block. This takes about 15 µs."""
    with _set(OVERRIDES), jax.transfer_guard("allow"):
        yield


def with_overrides(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Return the result of a function called under Rekindle's overrides, for worker threads."""
    with overrides():
        return function(*arguments, **options)


def default_device() -> Any:
    """Return this thread's default device for JAX: a device, a platform, or None for JAX's choice."""
    return _value("jax_default_device")


def _value(name: str) -> Any:
    """Return this thread's value of a setting, or the process's if JAX has no per-thread value; None if unknown."""
    return getattr(jax.config, name, jax.config.values.get(name))


@contextmanager
def _set(values: Mapping[str, Any]) -> Iterator[None]:
    """Set values for this thread, within a `with` block. Unknown and process-wide settings are skipped."""
    with ExitStack() as stack:
        for name, value in values.items():
            state = _STATES.get(name)  # a process-wide flag is not callable
            if callable(state):
                stack.enter_context(state(value))
        yield


# JAX exposes per-thread values publicly for some settings only.
_STATES: Final[Mapping[str, Any]] = jax.config._value_holders
