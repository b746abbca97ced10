"""Selection of a session's devices."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import Mesh

from rekindle.assembly.limits.machine import limit_threads, memory_limit
from rekindle.core.device.jax_settings import default_device, with_overrides
from rekindle.core.device.place import Place
from rekindle.core.errors import ConfigError
from rekindle.settings.engine import AXES, Dtype, Settings
from rekindle_kernels.devices import capability_of

_EXTRAS = {"gpu": "cuda", "cuda": "cuda", "tpu": "tpu"}
"""Extras of Rekindle that add a platform to JAX, by its name."""
_APPLE = ("mps", "metal")
"""Names of Apple's GPUs."""


def device_of(spec: Any) -> jax.Device:
    """Return the device for the `device=` argument of `open`.

    Args:
        spec: a device, or a platform with or without an index, such as "gpu" or "gpu:1"; None is the value of
            `jax_default_device`, else JAX's first device.

    Raises:
        ConfigError: the device does not exist, or belongs to another process of `jax.distributed`.
    """
    limit_threads()
    if spec is None:
        spec = default_device() or jax.local_devices()[0]
    device = _device_by_name(spec) if isinstance(spec, str) else spec
    if not isinstance(device, jax.Device):
        raise ConfigError(f'device must be a platform such as "gpu", "gpu:1", or a jax.Device; got {spec!r:.80}')
    if device.process_index != jax.process_index():
        raise ConfigError(f"device {device} belongs to process {device.process_index}; this one has {_local_names()}")
    return device


def places_of(settings: Settings) -> list[Place]:
    """Return candidate places of the first lane, from the `device`, `tensor`, `data` and `mesh` settings.

    Returns:
        One place, or several candidates in ascending number of devices.

    Raises:
        ConfigError: the devices do not exist, or belong to another process of `jax.distributed`.
    """
    if settings.mesh is not None:
        return [_place_of_mesh(settings.mesh)]
    first, tensor, data = device_of(settings.device), settings.tensor, settings.data
    groups = data * settings.lane_count
    alike = [each for each in jax.local_devices(backend=first.platform) if each.device_kind == first.device_kind]
    local = [device for device in alike if device.id >= first.id]
    if tensor is None:
        spec = settings.device or default_device()
        alone = shares_memory(first) or not (spec is None or (isinstance(spec, str) and ":" not in spec))
        tensor = 1 if alone or len(local) < groups else None
    if tensor is None:
        return candidate_places(local, data, settings.lane_count)
    required = data * tensor if shares_memory(first) else groups * tensor
    if len(local) < required:
        sizes = {"replicas": settings.lane_count, "data": data, "tensor": tensor}
        product = " times ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
        raise ConfigError(
            f"{product} needs as many devices from {first} on, but there are only {len(local)}; this process has "
            f"{_local_names()}"
        )
    return [place_from(local, tensor, data)]


def place_of_set(name: str, spec: Any) -> Place:
    """Return the place for the `prefill=` or `decode=` argument of `open`.

    Args:
        name: the setting.
        spec: a device as in `device_of`, or a sequence of devices.

    Raises:
        ConfigError: the devices do not exist, or differ in kind.
    """
    several = isinstance(spec, Sequence) and not isinstance(spec, str)
    devices = tuple(map(device_of, spec if several else [spec]))
    if not devices or len(set(devices)) < len(devices):
        raise ConfigError(f"{name} must be a device or a list of different devices, got {spec!r:.80}")
    if len({(device.platform, device.device_kind) for device in devices}) > 1:
        raise ConfigError(f"the devices of {name} must be of one kind, got {', '.join(map(str, devices))}")
    return Place(devices)


def lanes_of(place: Place, settings: Settings) -> list[Place]:
    """Return the places of all lanes, given the place of the first from `places_of`.

    On a CPU with too few devices, all lanes share one place.
    """
    count = len(place.devices)
    alike = jax.local_devices(backend=place.first.platform)
    others = [each for each in alike if each.device_kind == place.first.device_kind and each.id >= place.first.id]
    if len(others) < count * settings.lane_count:
        return [place] * settings.lane_count
    further = range(count, count * settings.lane_count, count)
    return [place, *(place_from(others[start:], place.tensor, place.data) for start in further)]


def candidate_places(devices: Sequence[jax.Device], data: int = 1, replicas: int = 1) -> list[Place]:
    """Return one place for each tensor-parallel size: the divisors of the number of devices available to a group.

    Args:
        data: the number of groups in a place.
        replicas: the number of places to leave room for.
    """
    most = len(devices) // (data * replicas)
    return [place_from(devices, tensor, data) for tensor in range(1, most + 1) if most % tensor == 0]


def place_from(devices: Sequence[jax.Device], tensor: int, data: int = 1) -> Place:
    """Return the place of the first `data * tensor` devices. They need not be attached.

    If they are all chips of a TPU, JAX orders them by their wiring.
    """
    members = devices[: data * tensor]
    if members[0].platform == "tpu" and len(members) == members[0].client.device_count():
        with suppress(NotImplementedError):  # jax has no better order
            members = [*create_device_mesh((data, tensor), members).flat]
    return Place(tuple(members), data)


def _place_of_mesh(mesh: Any) -> Place:
    if not isinstance(mesh, Mesh):
        raise ConfigError(f"mesh must be a jax.sharding.Mesh, which has devices, got {mesh!r:.80}")
    axes = sorted(range(len(mesh.axis_names)), key=lambda axis: (AXES + mesh.axis_names).index(mesh.axis_names[axis]))
    devices = tuple(np.transpose(mesh.devices, axes).flat)
    others = [device for device in devices if device.process_index != jax.process_index()]
    if others:
        raise ConfigError(f"mesh has {others[0]} of process {others[0].process_index}; this one has {_local_names()}")
    if len({(device.platform, device.device_kind) for device in devices}) > 1:
        raise ConfigError(f"the devices of a mesh must be of one kind, got {', '.join(map(str, devices))}")
    return Place(devices, mesh.shape.get("data", 1))


def places_over(spec: Any, settings: Settings) -> list[Place]:
    """Return candidate places with an equal number of devices from each process of `jax.distributed`.

    Args:
        spec: a platform for `device=` of `open`, or None for JAX's default.
        settings: the settings; `tensor` is the total number of devices.

    Returns:
        One place, or several candidates in ascending number of devices.

    Raises:
        ConfigError: `spec` is not a platform, or the processes lack the devices.
    """
    if not (spec is None or (isinstance(spec, str) and ":" not in spec)):
        raise ConfigError(f'with hosts, device must be None or a platform such as "gpu"; got {spec!r:.80}')
    try:
        devices = sorted(jax.devices(spec), key=lambda device: device.id)
    except RuntimeError as error:
        raise _missing(spec, error) from error
    processes, tensor = jax.process_count(), settings.tensor
    of_processes = [[device for device in devices if device.process_index == index] for index in range(processes)]
    fewest = min(map(len, of_processes))
    if tensor is None:
        most = 1 if shares_memory(devices[0]) else fewest
        counts = [each for each in range(1, most + 1) if most % each == 0]
    elif tensor % processes == 0 and tensor // processes <= fewest:
        counts = [tensor // processes]
    else:
        raise ConfigError(
            f"tensor={tensor} must be a multiple of the {processes} processes that share the model, and at most "
            f"{processes * fewest}, since one of them has {fewest} devices"
        )
    return [Place(tuple(device for local in of_processes for device in local[:count])) for count in counts]


def put_on(device: jax.Device) -> Callable[[Any], jax.Array]:
    """Return a function to put arrays on a device, callable from any thread."""
    return lambda array: with_overrides(jax.device_put, array, device)


def memory_of(device: jax.Device) -> int | None:
    """Return the bytes of memory for all programs on a device together; None if unknown."""
    if shares_memory(device):
        return _host_memory()
    try:
        stats = device.memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # the device is not attached
        stats = None
    if not stats or "bytes_limit" not in stats:
        return None
    return int(min(stats["bytes_limit"], _reserved(device)))


@cache
def _reserved(device: jax.Device) -> int | float:
    """Return the bytes that JAX has reserved on a GPU at the first look; infinity if it reserves none in advance.

    The share is XLA_CLIENT_MEM_FRACTION, formerly XLA_PYTHON_CLIENT_MEM_FRACTION. Newer versions of JAX let the pool
    grow beyond it, as far as other programs leave memory, and then name the whole memory as the limit.
    """
    reserves = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() not in ("false", "0")
    allocates = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default").lower() in ("default", "bfc")
    pool = (device.memory_stats() or {}).get("pool_bytes")
    return int(pool) if device.platform == "gpu" and pool and reserves and allocates else math.inf


def shares_memory(device: jax.Device) -> bool:
    """Return True if a device's memory is the host's, shared with every program on this machine."""
    return str(device.platform) == "cpu"


def reads_floats(device: jax.Device) -> bool:
    """Return True if the compiler for an accelerator reads weights of 8-bit floats as they are.

    For GPUs before compute capability 9.0, XLA widens a whole matrix in memory before each product.
    """
    return device.platform == "tpu" or (capability_of(device) or (0, 0)) >= (9, 0)


def default_dtype(device: jax.Device) -> Dtype:
    """Return the data type of weights on a device unless `dtype` names another.

    GPUs before compute capability 8.0, such as the T4, have no bfloat16: XLA would compute its products in float32.
    """
    if shares_memory(device):
        return "float32"
    return "bfloat16" if (capability_of(device) or (8, 0)) >= (8, 0) else "float16"


def _host_memory() -> int | None:
    """Return the bytes of memory of the machine, or of this process's control groups if less."""
    if not hasattr(os, "sysconf"):
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_limit()
    return memory if limit is None else min(memory, limit)


def _device_by_name(name: str) -> jax.Device:
    platform, _, index = name.partition(":")
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError as error:  # the platform is unknown or unusable
        raise _missing(name, error) from error
    if index and not (index.isdecimal() and int(index) < len(devices)):
        raise ConfigError(f"device {name!r} does not exist; JAX has {len(devices)} of {platform!r}, counted from 0")
    return devices[int(index or 0)]


def _missing(name: str | None, error: RuntimeError) -> ConfigError:
    """Return the error for a platform that JAX does not have, with the extra that adds it."""
    platform = str(name).partition(":")[0]
    extra = _EXTRAS.get(platform)
    cure = f"; pip install 'rekindle-llm[{extra}]' adds it where the machine has one" if extra else ""
    if platform in _APPLE:
        cure = "; on a Mac, Rekindle computes on the CPU: leave device out"
    return ConfigError(f"device {name!r} does not exist; JAX has {_local_names()}{cure} ({error})")


def _local_names() -> str:
    return ", ".join(f"{device.platform}:{index}" for index, device in enumerate(jax.local_devices()))
