"""Named devices as targets of cross-compilation, on a machine without them."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from rekindle.core.errors import ConfigError

if TYPE_CHECKING:  # the names of targets are in the help of commands, which imports no jax
    import jax

TPUS: Final[Mapping[str, tuple[int, ...]]] = {"v5e": (1, 1), "v6e": (1, 1), "v5p": (2, 2, 1)}
"""TPU generations, each with the chip counts of its smallest machine along its wiring axes."""
TPUS_OF_A_HOST: Final[Mapping[str, int]] = {"v5e": 8, "v6e": 8, "v5p": 4}
"""Maximum number of chips of one host, owned by one process. A larger topology has several hosts of four chips each."""
GPUS_OF_A_HOST: Final = 8


@dataclass(frozen=True, slots=True)
class Gpu:
    """Properties of a GPU for the CUDA compiler; all sizes in bytes.

    Attributes:
        kind: the device's name in the driver.
        capability: the compute capability.
        accelerated: whether it has architecture-specific instructions, as in sm_90a, absent from later capabilities.
        cores: streaming multiprocessors.
        lanes: float32 units of one core.
        threads: the maximum number of threads of one core.
        shared_memory: shared memory of one core.
        block_memory: the maximum shared memory of one block.
        cache: the size of the L2 cache.
        bandwidth: the memory bandwidth, in bytes per second.
        gigahertz: the clock of the cores.
        memory: the device's total memory.
    """

    kind: str
    capability: tuple[int, int]
    accelerated: bool
    cores: int
    lanes: int
    threads: int
    shared_memory: int
    block_memory: int
    cache: int
    bandwidth: int
    gigahertz: float
    memory: int


_TURING: Final = {"lanes": 64, "threads": 1024, "shared_memory": 65536, "block_memory": 65536}
_A100: Final = {"lanes": 64, "threads": 2048, "shared_memory": 167936, "block_memory": 166912}
_GRAPHICS: Final = {"lanes": 128, "threads": 1536, "shared_memory": 102400, "block_memory": 101376}
_HOPPER: Final = {"lanes": 128, "threads": 2048, "shared_memory": 233472, "block_memory": 232448}
GPUS: Final[Mapping[str, Gpu]] = {
    "t4": Gpu(
        "Tesla T4", (7, 5), False, 40, **_TURING, cache=4194304, bandwidth=320064000000,
        gigahertz=1.59, memory=15634268160,
    ),
    "a100": Gpu(
        "NVIDIA A100-SXM4-40GB", (8, 0), False, 108, **_A100, cache=41943040, bandwidth=1555200000000,
        gigahertz=1.41, memory=42331013120,
    ),
    "a100-80gb": Gpu(
        "NVIDIA A100-SXM4-80GB", (8, 0), False, 108, **_A100, cache=41943040, bandwidth=2039040000000,
        gigahertz=1.41, memory=85100068864,
    ),
    "a10g": Gpu(
        "NVIDIA A10G", (8, 6), False, 80, **_GRAPHICS, cache=6291456, bandwidth=600096000000,
        gigahertz=1.71, memory=24146608128,
    ),
    "l4": Gpu(
        "NVIDIA L4", (8, 9), False, 58, **_GRAPHICS, cache=50331648, bandwidth=300096000000,
        gigahertz=2.04, memory=24152899584,
    ),
    "rtx4090": Gpu(
        "NVIDIA GeForce RTX 4090", (8, 9), False, 128, **_GRAPHICS, cache=75497472, bandwidth=1008096000000,
        gigahertz=2.52, memory=25757220864,
    ),
    "h100": Gpu(
        "NVIDIA H100 80GB HBM3", (9, 0), True, 132, **_HOPPER, cache=52428800, bandwidth=3352320000000,
        gigahertz=1.98, memory=84942979072,
    ),
    "b200": Gpu(
        "NVIDIA B200", (10, 0), True, 148, **_HOPPER, cache=132644864, bandwidth=7672320000000,
        gigahertz=1.965, memory=191514411008,
    ),
    "rtx5090": Gpu(
        "NVIDIA GeForce RTX 5090", (12, 0), False, 170, **_GRAPHICS, cache=100663296, bandwidth=1792128000000,
        gigahertz=2.41, memory=34190917632,
    ),
}  # fmt: skip
"""By data sheets and XLA's own descriptions. A100 and H100 are SXM: PCIe models need other programs."""

_TPU_MACHINE: Final = {
    "JAX_FORCE_TPU_INIT": "1",  # otherwise jax ignores libtpu on a machine without chips
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # otherwise libtpu refuses to load in a second process
    "TPU_SKIP_MDS_QUERY": "1",  # otherwise libtpu queries Google's cloud for the machine type
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",  # libtpu needs some type; the target's name overrides it
    "TPU_WORKER_HOSTNAMES": "localhost",
}
LARGER: Final = "larger ones such as tpu:v5e:2x4 and cuda:h100:8"
"""Examples of targets beyond `known_targets`, for messages."""
_PLUGINS: Final = {"xla_cuda13": 13, "xla_cuda12": 12}
"""Entry points of the CUDA plugins, each with its major version of CUDA."""


def devices_of(target: str) -> "list[jax.Device]":
    """Return the devices of a target. They serve compilation only.

    Call this in a separate process, before its first use of a jax device. Afterwards jax sees only the CPU there, and
    the environment variables are those of a machine with the target's devices.

    Args:
        target: the name: "cuda:h100" for one GPU, "cuda:h100:8" for a host with eight, or "tpu:v5e:2x4" for chips in
            a 2x4 topology, on one host if a host can hold all of them.

    Returns:
        The devices, in the order of `jax.devices()` on the target.
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


def _tpus(target: str, topology: str) -> "list[jax.Device]":
    if find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise ConfigError(
            f"compiling for {target} needs libtpu: install rekindle-llm[tpu] here, with the target's versions"
        )
    import jax
    from jax._src.cloud_tpu_init import cloud_tpu_init
    from jax.experimental.topologies import get_topology_desc

    _hide_devices()
    for name, value in _TPU_MACHINE.items():
        os.environ.setdefault(name, value)
    generation, _, arrangement = topology.partition(":")
    sizes = [*map(int, arrangement.split("x")), 1][:3]
    # libtpu assumes four chips per host by default.
    one_host = math.prod(sizes) <= TPUS_OF_A_HOST[generation]
    bounds = {"chips_per_host_bounds": sizes} if one_host else {}
    cloud_tpu_init()  # extends LIBTPU_INIT_ARGS, a part of the key, just as on a machine with chips
    try:
        return list(get_topology_desc(topology, "tpu", **bounds).devices)
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"libtpu has no target {target!r}: {_first_line(error)}") from error


def _gpus(target: str, gpu: Gpu, count: int) -> "list[jax.Device]":
    import jax
    from jax.experimental.topologies import get_topology_desc

    installed = {point.name for point in metadata.entry_points(group="jax_plugins")}
    versions = [version for plugin, version in _PLUGINS.items() if plugin in installed]
    if not versions:
        raise ConfigError(
            f"compiling for {target} needs jax's CUDA plugin: install rekindle-llm[cuda] here, "
            "with the target's versions"
        )
    _hide_devices()
    text = description_of(gpu, versions[0])
    try:
        # slices x hosts x GPUs per host
        return list(get_topology_desc(platform="cuda", topology=f"1x1x{count}", target_config=text).devices)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise ConfigError(f"jax's CUDA plugin has no target {target!r}: {_first_line(error)}") from error


def description_of(gpu: Gpu, cuda: int) -> str:
    """Return a stream_executor.GpuTargetConfigProto as text. Any cuDNN version will do: no program calls cuDNN."""
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
            threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: {gpu.threads}
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
        }}
    """


def _hide_devices() -> None:
    """Hide all devices but the CPU: jax fails where there is no accelerator, and targets it where there is one."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
