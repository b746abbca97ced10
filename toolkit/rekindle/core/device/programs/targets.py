"""The names of devices for which programs can be compiled on a machine that has none of them."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Final

import jax
from jax.experimental.topologies import get_topology_desc

from rekindle.core.errors import ConfigError

TPUS: Final[Mapping[str, tuple[int, ...]]] = {"v5e": (1, 1), "v6e": (1, 1), "v5p": (2, 2, 1)}
"""Generations of TPUs, each with the chips of its smallest machine along the axes in which they are wired."""
TPUS_OF_A_HOST: Final[Mapping[str, int]] = {"v5e": 8, "v6e": 8, "v5p": 4}
"""The most chips of one host, which one process has. More are those of several hosts with four chips each."""
GPUS_OF_A_HOST: Final = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    """The properties of a device that the CUDA compiler asks for; all sizes in bytes.

    Attributes:
        kind: the device's name as the driver gives it.
        capability: the compute capability.
        accelerated: whether it has instructions that later capabilities need not have, as sm_90a.
        cores: streaming multiprocessors.
        lanes: float32 units of one core.
        shared_memory: shared memory of one core.
        block_memory: shared memory that one block may ask for.
        cache: the second level of the cache.
        bandwidth: of the memory, in bytes a second.
        gigahertz: the clock of the cores.
        memory: all memory of the device.
    """

    kind: str
    capability: tuple[int, int]
    accelerated: bool
    cores: int
    lanes: int
    shared_memory: int
    block_memory: int
    cache: int
    bandwidth: int
    gigahertz: float
    memory: int


GPUS: Final[Mapping[str, Gpu]] = {
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3", (9, 0), True, 132, 128, 233472, 232448, 52428800, 3352320000000, 1.98, 84942979072
    ),
    "a100": Gpu(
        "NVIDIA A100-SXM4-40GB", (8, 0), False, 108, 64, 167936, 166912, 41943040, 1555200000000, 1.41, 42331013120
    ),
    "a100-80gb": Gpu(
        "NVIDIA A100-SXM4-80GB", (8, 0), False, 108, 64, 167936, 166912, 41943040, 2039040000000, 1.41, 85100068864
    ),
}
"""The SXM models. Models on PCIe cards have other names, clocks and memories, and programs of their own."""

_TPU_MACHINE: Final = {
    "JAX_FORCE_TPU_INIT": "1",  # jax looks for chips
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # libtpu guards chips against a second process
    "TPU_SKIP_MDS_QUERY": "1",  # and asks Google's cloud what machine this is
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",  # or takes it from here; a target is described by its own name
    "TPU_WORKER_HOSTNAMES": "localhost",
}
LARGER: Final = "larger ones such as tpu:v5e:2x4 and cuda:h100:8"
"""The targets that `known_targets` does not name."""
_PLUGINS: Final = {"xla_cuda13": 13, "xla_cuda12": 12}
"""Entry points of the CUDA plugins, with the major version of CUDA of each."""


def devices_of(target: str) -> list[jax.Device]:
    """Return the devices of a target, for which programs can be compiled; they can do nothing else.

    Call this in a process of its own, before it asks jax for any device. From then on the process has its CPU alone,
    and the environment of a machine with the target's devices.

    Args:
        target: the name, such as "cuda:h100" for one, "cuda:h100:8" for a host with eight of them, or "tpu:v5e:2x4"
            for chips in this arrangement: those of one host, if a host can have as many.

    Returns:
        The devices in the order in which `jax.devices()` has them there.

    Raises:
        ConfigError: the target is unknown, or its compiler is not installed.
    """
    platform, _, model = target.partition(":")
    generation, _, arrangement = model.partition(":")
    if platform == "tpu" and generation in TPUS and _is_arrangement(arrangement, len(TPUS[generation])):
        return _tpus(target, f"{generation}:{arrangement}")
    kind, _, count = model.partition(":")
    if platform == "cuda" and kind in GPUS and (kind == model or _is_count(count)):
        return _gpus(target, GPUS[kind], int(count or 1))
    raise ConfigError(f"no target {target!r}; known are {', '.join(known_targets())}, and {LARGER}")


def known_targets() -> tuple[str, ...]:
    """Return one name for each kind of device."""
    tpus = (f"tpu:{generation}:{'x'.join(map(str, shape))}" for generation, shape in TPUS.items())
    return (*tpus, *(f"cuda:{model}" for model in GPUS))


def _is_count(text: str) -> bool:
    return text.isdecimal() and 1 <= int(text) <= GPUS_OF_A_HOST


def _is_arrangement(text: str, axes: int) -> bool:
    sizes = text.split("x")
    return len(sizes) == axes and all(size.isdecimal() and int(size) for size in sizes)


def _tpus(target: str, topology: str) -> list[jax.Device]:
    if find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise ConfigError(
            f"compiling for {target} needs libtpu: install rekindle[tpu] here, with the target's versions"
        )
    from jax._src.cloud_tpu_init import cloud_tpu_init

    _have_no_devices()
    for name, value in _TPU_MACHINE.items():
        os.environ.setdefault(name, value)
    generation, _, arrangement = topology.partition(":")
    sizes = [*map(int, arrangement.split("x")), 1][:3]
    # libtpu takes a host to have four chips, unless it is told otherwise.
    one_host = math.prod(sizes) <= TPUS_OF_A_HOST[generation]
    bounds = {"chips_per_host_bounds": sizes} if one_host else {}
    cloud_tpu_init()  # adds to LIBTPU_INIT_ARGS, which are in the key, as it does where there are chips
    try:
        return list(get_topology_desc(topology, "tpu", **bounds).devices)
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"libtpu has no target {target!r}: {_first_line(error)}") from error


def _gpus(target: str, gpu: Gpu, count: int) -> list[jax.Device]:
    installed = {point.name for point in metadata.entry_points(group="jax_plugins")}
    versions = [version for plugin, version in _PLUGINS.items() if plugin in installed]
    if not versions:
        raise ConfigError(
            f"compiling for {target} needs jax's CUDA plugin: install rekindle[cuda] here, with the target's versions"
        )
    _have_no_devices()
    text = _description(gpu, versions[0])
    try:
        # So many slices, hosts, and GPUs of a host.
        return list(get_topology_desc(platform="cuda", topology=f"1x1x{count}", target_config=text).devices)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise ConfigError(f"jax's CUDA plugin has no target {target!r}: {_first_line(error)}") from error


def _description(gpu: Gpu, cuda: int) -> str:
    """Return a stream_executor.GpuTargetConfigProto as text. Any version of cuDNN will do, as no program calls it."""
    major, minor = gpu.capability
    return f"""
        platform_name: "CUDA"
        device_description_str: "{gpu.kind}"
        runtime_version {{ major: {cuda} }}
        dnn_version_info {{ major: 9 minor: 10 }}
        gpu_device_info {{
            cuda_compute_capability {{
                major: {major} minor: {minor} feature_extension: {"ACCELERATED_FEATURES" if gpu.accelerated else "NONE"}
            }}
            core_count: {gpu.cores} fpus_per_core: {gpu.lanes} clock_rate_ghz: {gpu.gigahertz}
            shared_memory_per_core: {gpu.shared_memory} shared_memory_per_block_optin: {gpu.block_memory}
            l2_cache_size: {gpu.cache} memory_bandwidth: {gpu.bandwidth} device_memory_size: {gpu.memory}
            shared_memory_per_block: 49152 registers_per_core_limit: 65536 registers_per_block_limit: 65536
            threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
        }}
    """


def _have_no_devices() -> None:
    """Hide all devices from jax, which raises an error where there is none, and compiles for it where there is one."""
    jax.config.update("jax_platforms", "cpu")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
