"""What makes a compiled program valid, named part by part, without tracing or lowering anything.

A stored program is used only where every part is as it was when the program was compiled.
"""

import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import jax

from rekindle.models.config import ModelConfig
from rekindle.store.validity import Difference, code_digest, sha256_hex

JAX_CONFIG: Final = (
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
"""Values of `jax.config` that change what is compiled; the others change where, when, or what is logged or refused."""

XLA_VARIABLES: Final = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
SILENT_FLAGS: Final = ("--xla_dump_",)
"""Flags that begin like this write files beside the program."""

PACKAGES: Final = ("jax", "jaxlib", "flax", "numpy")
"""What traces and lowers, and numpy, which computes the constants."""

PLUGINS: Final = {
    "tpu": ("libtpu",),
    "gpu": (
        "jax-cuda12-plugin",
        "jax-cuda13-plugin",
        "nvidia-cublas",
        "nvidia-cublas-cu12",
        "nvidia-cuda-nvcc",
        "nvidia-cuda-nvcc-cu12",
        "nvidia-cudnn-cu12",
        "nvidia-cudnn-cu13",
        "nvidia-nvvm",
    ),
}
"""Packages whose version matters on a platform, beside those that declare themselves as plugins to jax."""

CPU_NAMES: Final = (
    "vendor_id",
    "cpu family",
    "model",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
)
CPU_FEATURES: Final = ("flags", "Features")
THREAD_VARIABLES: Final = ("NPROC", "PJRT_NPROC")


@dataclass(frozen=True, slots=True)
class Target:
    """The devices that programs are compiled for, attached here or not: only what can be known in both cases.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        platform_version: of the runtime, on TPU libtpu's build. Empty on GPU: attached devices give the release of CUDA
            that the plugin was built with, those that are not give none, and `plugins` says more than that.
        device_kind: the model of the device, on GPU with its compute capability.
        topology: which devices, in order, and how they are wired: out of how many, and on TPU where.
        plugins: versions of the packages that compile for them; empty on CPU, where jaxlib does.
        host_cpu: model, features and threads that the CPU compiler reckons with; empty on other platforms.
    """

    platform: str
    platform_version: str
    device_kind: str
    topology: str
    plugins: str
    host_cpu: str

    @classmethod
    def of(cls, devices: Sequence[jax.Device]) -> "Target":
        """Devices of one kind, in the order of the mesh: attached ones, or those of `targets.devices_of`."""
        first = devices[0]
        return cls(
            platform=first.platform,
            platform_version="" if first.platform == "gpu" else first.client.platform_version,
            device_kind=_kind(first),
            topology=_topology(devices),
            plugins=_plugins(first.platform),
            host_cpu=_host_cpu() if first.platform == "cpu" else "",
        )


@dataclass(frozen=True, slots=True)
class Build:
    """What all programs of one session have in common.

    Attributes:
        code: of this package's own sources.
        model: the decoder's config.
        compiler_options: of `Lowered.compile`.
        xla_flags: from the environment.
        jax_config: the values of `JAX_CONFIG`.
        packages, python: versions.
        target: the devices.
    """

    code: str
    model: str
    compiler_options: str
    xla_flags: str
    jax_config: str
    packages: str
    python: str
    target: Target

    @classmethod
    def of(
        cls, model: ModelConfig, target: Target, compiler_options: Mapping[str, str | bool | int | float]
    ) -> "Build":
        """As this process would compile now; to be asked in the thread that compiles, since jax.config is its own."""
        return cls(
            code=code_digest(),
            model=repr(model),
            compiler_options=json.dumps(dict(compiler_options), sort_keys=True),
            xla_flags=_xla_flags(),
            jax_config=" ".join(f"{name}={_configured(name)}" for name in JAX_CONFIG),
            packages=_versions(PACKAGES),
            python=f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}",
            target=target,
        )


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """One program of a build.

    Attributes:
        program: its name, such as a bucket's.
        statics: values that are compiled into it.
        arguments: its arguments' structure, shapes and dtypes.
        shardings: where its arguments are, or must be.
        build: all the rest.
    """

    program: str
    statics: str
    arguments: str
    shardings: str
    build: Build

    @classmethod
    def of(
        cls, build: Build, program: str, statics: Mapping[str, int | str | bool], arguments: Mapping[str, Any]
    ) -> "ProgramKey":
        """The key of one program.

        Args:
            build: shared by all programs of a session.
            program: its name.
            statics: values that are compiled into it and are neither in its name nor in the model's config.
            arguments: by name, pytrees of arrays or of `jax.ShapeDtypeStruct`.
        """
        return cls(
            program=program,
            statics=json.dumps(dict(statics), sort_keys=True),
            arguments="; ".join(f"{name}: {_shapes(tree)}" for name, tree in arguments.items()),
            shardings="; ".join(f"{name}: {_shardings(tree)}" for name, tree in arguments.items()),
            build=build,
        )

    def parts(self) -> dict[str, str]:
        """Every part by name."""
        parts = asdict(self)
        parts |= parts.pop("build")
        parts |= parts.pop("target")
        return parts

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that differ where any part does."""
        return sha256_hex(json.dumps(self.parts(), sort_keys=True).encode())

    def explain(self, other: "ProgramKey | Mapping[str, str]") -> dict[str, Difference]:
        """The parts that differ, each with its value here and in `other`, which may be the parts of a stored key."""
        mine, theirs = self.parts(), other.parts() if isinstance(other, ProgramKey) else other
        pairs = {name: (mine.get(name, ""), theirs.get(name, "")) for name in (*mine, *theirs)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _short(text: str) -> str:
    return sha256_hex(text.encode())[:16]


def _shapes(tree: Any) -> str:
    """Readable as far as that is short, and a digest of every leaf's place, shape and dtype."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = [f"{leaf.dtype}{list(leaf.shape)}{'~' if getattr(leaf, 'weak_type', False) else ''}" for leaf in leaves]
    return f"{_counted(kinds)} #{_short(f'{structure} {kinds}')}"


def _shardings(tree: Any) -> str:
    places = [str(getattr(leaf, "sharding", None)) for leaf in jax.tree.leaves(tree)]
    return f"{_counted(places)} #{_short(str(places))}"


def _counted(values: Sequence[str]) -> str:
    return ", ".join(f"{times} x {value}" for value, times in Counter(values).items())


def _kind(device: jax.Device) -> str:
    capability = getattr(device, "compute_capability", None)
    return device.device_kind if capability is None else f"{device.device_kind} {capability}"


def _topology(devices: Sequence[jax.Device]) -> str:
    """A program names its devices by id, and on TPU is compiled for the way in which all of them are wired."""
    places = " ".join(map(_place, devices))
    return places if devices[0].platform == "gpu" else f"{places} of {devices[0].client.device_count()}"


def _place(device: jax.Device) -> str:
    named = f"{device.platform}:{device.id}@{device.process_index}"
    if device.platform != "tpu":
        return named
    # Attached chips of a single slice may say that it is the first; those of a description never do.
    wiring = [(*device.coords, device.core_on_chip), getattr(device, "slice_index", None) or 0]
    return "/".join([named, *map(str, wiring)])


def _configured(name: str) -> Any:
    """This thread's value where jax keeps one for each thread, else the process's; None where jax has no such name."""
    return getattr(jax.config, name, jax.config.values.get(name))


def _xla_flags() -> str:
    """In their order, since the last of two equal ones counts."""
    flags = [flag for name in XLA_VARIABLES for flag in (f"{name}:", *os.environ.get(name, "").split())]
    return " ".join(flag for flag in flags if not flag.startswith(SILENT_FLAGS))


def _plugins(platform_name: str) -> str:
    if platform_name == "cpu":
        return ""
    declared = {point.dist.name for point in metadata.entry_points(group="jax_plugins") if point.dist is not None}
    return _versions([*PLUGINS.get(platform_name, ()), *sorted(declared if platform_name != "tpu" else ())])


def _versions(packages: Sequence[str]) -> str:
    return " ".join(f"{name} {version}" for name in packages if (version := _version(name)))


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _host_cpu() -> str:
    """The compiler takes all features that it finds, and divides work among the threads that it may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = "".join(f" {name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ)
    return f"{platform.machine()} {_cpu_model()} {cores} cores{limits}"


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:  # not Linux
        return platform.processor()
    pairs = [line.partition(":") for line in first.splitlines()]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    names = [f"{name} {values[name]}" for name in CPU_NAMES if name in values]
    features = [f"{name} #{_short(' '.join(sorted(values[name].split())))}" for name in CPU_FEATURES if name in values]
    return " ".join(names + features)
