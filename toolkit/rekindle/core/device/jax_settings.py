"""The settings of JAX under which Rekindle works, each thread for itself, whatever the process has set.

A notebook sets JAX up for its own programs: 64-bit numbers, checks for NaNs, guards against transfers. Those settings
stop an engine or change what it computes, so its threads have their own. The other settings that change what is
compiled stay the user's: a session has those that were in force when it was opened.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final, ParamSpec, TypeVar

import jax

COMPILED_IN: Final = (
    "jax_enable_x64",  # dtypes of everything
    "jax_explicit_x64_dtypes",  # dtypes that were asked for by name
    "jax_numpy_dtype_promotion",  # dtypes where two meet
    "jax_allow_f16_reductions",  # dtypes of sums
    "jax_default_matmul_precision",  # precision of products that name none
    "jax_threefry_partitionable",  # which random bits
    "jax_threefry_gpu_kernel_lowering",  # another program for them
    "jax_use_shardy_partitioner",  # how shardings are propagated
    "jax_disable_most_optimizations",  # the compiler's effort
    "jax_optimization_level",  # the same
    "jax_exec_time_optimization_effort",  # the same
    "jax_memory_fitting_level",  # the same
    "jax_memory_fitting_effort",  # the same
    "jax_compiler_enable_remat_pass",  # a pass of the compiler
    "jax_enable_pgle",  # compiles with what a profile said
    "jax_use_simplified_jaxpr_constants",  # whether constants become arguments
    "jax_embedded_constants_max_bytes",  # from what size on
    "jax_ragged_dot_use_ragged_dot_instruction",  # another lowering of one operation
    "jax_ragged_dot_use_gpu_pallas_triton_lowering",  # the same
    "jax_pallas_use_mosaic_gpu",  # which compiler Pallas kernels go through
    "jax_pallas_enable_debug_checks",  # checks inside of kernels
    "jax_pallas_poison_buffers",  # kernels that write more
    "jax_mosaic_allow_hlo",  # what kernels may contain
    "jax_use_emit_pipeline_primitive",  # another lowering of kernels
    "jax_error_checking_behavior_nan",  # checks inside of programs
    "jax_error_checking_behavior_divide",  # the same
    "jax_error_checking_behavior_oob",  # the same
)
"""Values of `jax.config` that change what is compiled; others change where, when, or what is logged or refused."""

OWN: Final[Mapping[str, Any]] = {
    "jax_enable_x64": False,  # the step has 32-bit indices, and would have two kinds
    "jax_disable_jit": False,  # without a compiler there is no engine
    "jax_debug_nans": False,  # padding may compute NaNs, which nobody reads
    "jax_debug_infs": False,  # a banned token's logit is minus infinity
    # What JAX takes from its own cache has no code of its own, so it cannot be stored. The names of programs see to it
    # that nothing is found there (see `lowering`), and these that nothing is left there.
    "jax_persistent_cache_min_compile_time_secs": inf,
    "jax_persistent_cache_enable_xla_caches": "none",
}
"""Settings that are Rekindle's own. With them, its threads move arrays whatever `jax_transfer_guard` says."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class JaxSettings:
    """The settings of JAX that programs are compiled under.

    Attributes:
        values: those of `COMPILED_IN`, by name; None where this version of JAX has no such setting.
        default_device: where JAX puts arrays, as `jax_default_device` has it.
    """

    values: Mapping[str, Any]
    default_device: Any

    @classmethod
    def here(cls) -> "JaxSettings":
        """Return the settings of this thread, with Rekindle's own where it has them."""
        values = {name: OWN[name] if name in OWN else _value(name) for name in COMPILED_IN}
        return cls(values, default_device())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have these settings, and Rekindle's own, in this thread for a block."""
        with _set(self.values), jax.default_device(self.default_device), own_settings():
            yield


@contextmanager
def own_settings() -> Iterator[None]:
    """Have Rekindle's own settings in this thread for a block. It takes some 15 µs."""
    with _set(OWN), jax.transfer_guard("allow"):
        yield


def under_own_settings(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return what a function returns, called under Rekindle's own settings; for worker threads."""
    with own_settings():
        return function(*arguments, **named)


def default_device() -> Any:
    """Return where this thread has JAX put arrays: a device, a platform, or None for JAX's own choice."""
    return _value("jax_default_device")


def _value(name: str) -> Any:
    """Return this thread's value if JAX keeps one for each thread, else the process's; None for an unknown name."""
    return getattr(jax.config, name, jax.config.values.get(name))


@contextmanager
def _set(values: Mapping[str, Any]) -> Iterator[None]:
    """Set those values that JAX keeps for each thread, and knows; the others are what they are."""
    with ExitStack() as stack:
        for name, value in values.items():
            state = _STATES.get(name)  # a flag of the whole process cannot be called
            if callable(state):
                stack.enter_context(state(value))
        yield


# JAX has a public name for one thread's value of some of them only.
_STATES: Final[Mapping[str, Any]] = jax.config._value_holders
