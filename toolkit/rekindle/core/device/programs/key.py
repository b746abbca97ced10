"""The key that makes a compiled program valid, part by part, without tracing or lowering anything."""

import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import jax

from rekindle.core.device.jax_settings import JaxSettings
from rekindle.core.models.config import ModelConfig
from rekindle.core.store.validity import StoreKey, code_digest, sha256_hex
from rekindle_kernels.api import Implementation, library_of

XLA_VARIABLES: Final = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
SILENT_FLAGS: Final = ("--xla_dump_",)
"""How flags begin that only write files beside the program."""

PACKAGES: Final = ("jax", "jaxlib", "flax", "numpy")
"""Packages that trace and lower, and numpy, which computes the constants."""

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
"""Packages whose version matters on a platform, beside those that declare themselves as plugins of jax."""

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
    """The devices that programs are compiled for, as far as it can be known whether they are attached or not.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        platform_version: the version of the runtime, on TPU libtpu's build. Empty on GPU, where attached devices give
            the release of CUDA that the plugin was built with, and others give none; `plugins` says more than that.
        device_kind: the model of the device, on GPU with its compute capability.
        topology: the devices in order, each with its process, out of how many they are, and on TPU where they are
            wired; where they are of several processes, also which of them this one is.
        plugins: versions of the packages that compile for the devices; empty on CPU, where jaxlib does.
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
        """Return the target of devices of one kind, in the mesh's order; attached, or from `targets.devices_of`."""
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
class SharedKey:
    """The part of the key that all programs of one session have in common.

    Attributes:
        code: see `code_digest`.
        model: the decoder's config.
        xla_flags: flags of the compiler, from the environment.
        jax_config: the settings of JAX, see `JaxSettings`.
        packages, python: versions.
        target: the devices.
        native_kernels: the library that programs call, see `rekindle_kernels.api.library_of`.
    """

    code: str
    model: str
    xla_flags: str
    jax_config: str
    packages: str
    python: str
    target: Target
    native_kernels: str = ""

    @classmethod
    def of(
        cls, model: ModelConfig, target: Target, settings: JaxSettings, kernels: Implementation = "xla"
    ) -> "SharedKey":
        """Return how programs are compiled now under these settings, with kernels of this implementation."""
        return cls(
            code=code_digest(),
            model=repr(model),
            xla_flags=_xla_flags(),
            # Some versions of JAX have a setting, with False as its value, only once Pallas is imported.
            jax_config=" ".join(f"{name}={value or None}" for name, value in settings.values.items()),
            packages=_versions(PACKAGES),
            python=f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}",
            target=target,
            native_kernels=library_of(kernels),
        )


@dataclass(frozen=True, slots=True)
class ProgramKey(StoreKey):
    """The key of one program.

    Attributes:
        program: the program's name, such as a bucket's.
        statics: values that are compiled into the program.
        arguments: the structure, shapes and dtypes of the arguments.
        shardings: where the arguments are, or must be.
        build: see `SharedKey`.
    """

    program: str
    statics: str
    arguments: str
    shardings: str
    build: SharedKey

    @classmethod
    def of(
        cls, build: SharedKey, program: str, statics: Mapping[str, int | str | bool], arguments: Mapping[str, Any]
    ) -> "ProgramKey":
        """Return the key of one program.

        Args:
            statics: values that are compiled into the program, and are neither in its name nor in the model's config.
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
        """See `StoreKey`."""
        parts = asdict(self)
        parts |= parts.pop("build")
        parts |= parts.pop("target")
        return parts


def _short(text: str) -> str:
    return sha256_hex(text.encode())[:16]


def _shapes(tree: Any) -> str:
    """Describe the leaves in short, and add a digest of every leaf's place, shape and dtype."""
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
    """Return the ids by which programs name devices, and on TPU how all devices are wired, which is compiled in.

    What a program is to one of several processes that run it together, it is not to the others.
    """
    places = " ".join(map(_place, devices))
    if devices[0].platform != "gpu":
        places = f"{places} of {devices[0].client.device_count()}"
    several = len({device.process_index for device in devices}) > 1
    return f"{places}, in process {jax.process_index()}" if several else places


def _place(device: jax.Device) -> str:
    named = f"{device.platform}:{device.id}@{device.process_index}"
    if device.platform != "tpu":
        return named
    # Attached chips of a single slice may say that it is the first; those of a description never do.
    wiring = [(*device.coords, device.core_on_chip), getattr(device, "slice_index", None) or 0]
    return "/".join([named, *map(str, wiring)])


def _xla_flags() -> str:
    """Return all flags in their order, since the last of two equal ones counts."""
    flags = [flag for name in XLA_VARIABLES for flag in (f"{name}:", *_flags(os.environ.get(name, "")))]
    return " ".join(flag for flag in flags if not flag.startswith(SILENT_FLAGS))


def _flags(value: str) -> list[str]:
    """Return the flags of a variable. If it does not begin with a dash, XLA reads them from the file that it names."""
    if value and not value.lstrip().startswith("-"):
        with suppress(OSError):
            return Path(value).read_text(encoding="utf-8", errors="replace").split()
    return value.split()


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
    """Describe the CPU: the compiler uses all features that it finds, and divides work among all its threads."""
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
