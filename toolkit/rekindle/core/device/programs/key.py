"""Keys of compiled programs, computed part by part without tracing or lowering."""

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
from rekindle.core.store.sources import SOURCES
from rekindle.core.store.validity import StoreKey, sha256_hex
from rekindle_kernels.api import Implementation, library_of

CODE: Final = "rekindle.core.device.programs.lowering"
"""The module whose imports are all code in a compiled program."""
XLA_VARIABLES: Final = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
SILENT_FLAGS: Final = ("--xla_dump_",)
"""Prefixes of flags with no effect on the program: they only dump files."""

PACKAGES: Final = ("jax", "jaxlib", "flax", "numpy")
"""The packages for tracing and lowering, and numpy, which computes the constants."""

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
"""Further packages with an effect on programs of a platform, in addition to installed jax plugins."""

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
    """Description of the devices of a program, the same for attached devices and for cross-compilation targets.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        platform_version: the version of the runtime, on TPU libtpu's build. Empty on GPU: only attached devices report
            one, the plugin's CUDA release, and `plugins` is more precise.
        device_kind: the model of the device, on GPU with its compute capability.
        topology: the devices in order, each with its process, on TPU also with its wiring, then the number of all
            devices, and with several processes the index of this one.
        plugins: versions of the compiler packages for the devices; empty on CPU, where jaxlib compiles.
        host_cpu: the CPU model, features and threads seen by the CPU compiler; empty on other platforms.
    """

    platform: str
    platform_version: str
    device_kind: str
    topology: str
    plugins: str
    host_cpu: str

    @classmethod
    def of(cls, devices: Sequence[jax.Device]) -> "Target":
        """Return the target of devices of one kind in mesh order, either attached or from `targets.devices_of`."""
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
    """The part of the key common to all programs of a session.

    Attributes:
        code: a digest of all code in programs.
        model: the decoder's config.
        xla_flags: flags of the compiler, from the environment.
        jax_config: the JAX settings, see `JaxSettings`.
        packages, python: versions.
        target: the devices.
        native_kernels: the kernel library, see `rekindle_kernels.api.library_of`.
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
        """Return the shared key of programs compiled now, under these settings and with this kernel implementation."""
        return cls(
            code=SOURCES.digest(CODE),
            model=repr(model),
            xla_flags=_xla_flags(),
            # Some JAX versions add a setting of value False when Pallas is imported, so False equals None here.
            jax_config=" ".join(f"{name}={value or None}" for name, value in settings.values.items()),
            packages=_versions(PACKAGES),
            python=f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}",
            target=target,
            native_kernels=library_of(kernels),
        )

    @property
    def compiler(self) -> str:
        """Versions, settings and flags of the compiler."""
        target = self.target
        return "; ".join((self.packages, target.plugins, target.platform_version, self.jax_config, self.xla_flags))


@dataclass(frozen=True, slots=True)
class ProgramKey(StoreKey):
    """The key of one program.

    Attributes:
        program: the program's name, such as a bucket's.
        statics: values compiled into the program.
        arguments: the structure, shapes and dtypes of the arguments.
        shardings: the shardings of the arguments.
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
            statics: values compiled into the program, apart from its name and the model's config.
            arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`, by name.
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


def _short_digest(text: str) -> str:
    return sha256_hex(text.encode())[:16]


def _shapes(tree: Any) -> str:
    """Summarise the leaves, and add a digest of every leaf's place, shape and dtype."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = [
        f"{_name_of(leaf.dtype)}{list(leaf.shape)}{'~' if getattr(leaf, 'weak_type', False) else ''}" for leaf in leaves
    ]
    return f"{_tally(kinds)} #{_short_digest(f'{structure} {kinds}')}"


@cache
def _name_of(dtype: Any) -> str:
    return str(dtype)  # which numpy composes anew each time, 2,000 times in a warm start


def _shardings(tree: Any) -> str:
    places = [str(getattr(leaf, "sharding", None)) for leaf in jax.tree.leaves(tree)]
    return f"{_tally(places)} #{_short_digest(str(places))}"


def _tally(values: Sequence[str]) -> str:
    return ", ".join(f"{times} x {value}" for value, times in Counter(values).items())


def _kind(device: jax.Device) -> str:
    capability = getattr(device, "compute_capability", None)
    return device.device_kind if capability is None else f"{device.device_kind} {capability}"


def _topology(devices: Sequence[jax.Device]) -> str:
    """Return the device ids in the program, and on TPU the wiring of all devices, since it is compiled in.

    Each of several processes running a program together compiles a different part, so its index is included.
    """
    places = " ".join(map(_place, devices))
    if devices[0].platform != "gpu":
        places = f"{places} of {devices[0].client.device_count()}"
    several = len({device.process_index for device in devices}) > 1
    return f"{places}, in process {jax.process_index()}" if several else places


def _place(device: jax.Device) -> str:
    name = f"{device.platform}:{device.id}@{device.process_index}"
    if device.platform != "tpu":
        return name
    # Attached chips of a single slice may report slice 0; chips of a topology description report none.
    wiring = [(*device.coords, device.core_on_chip), getattr(device, "slice_index", None) or 0]
    return "/".join([name, *map(str, wiring)])


def _xla_flags() -> str:
    """Return all flags in order, since the last of equal flags wins."""
    flags = [flag for name in XLA_VARIABLES for flag in (f"{name}:", *_flags(os.environ.get(name, "")))]
    return " ".join(flag for flag in flags if not flag.startswith(SILENT_FLAGS))


def _flags(value: str) -> list[str]:
    """Return the flags of a variable. XLA takes a value without a leading dash as the name of a file of flags."""
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
    """Describe the CPU: the compiler uses all its features, and divides work among all its threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = "".join(f" {name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ)
    return f"{platform.machine()} {cpu_model()} {cores} cores{limits}"


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model and the features of the CPU."""
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:  # not Linux
        return platform.processor()
    pairs = [line.partition(":") for line in first.splitlines()]
    values = {name.strip(): value.strip() for name, _, value in pairs}
    names = [f"{name} {values[name]}" for name in CPU_NAMES if name in values]
    features = [
        f"{name} #{_short_digest(' '.join(sorted(values[name].split())))}" for name in CPU_FEATURES if name in values
    ]
    return " ".join(names + features)
