"""Which devices a session is for."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import Mesh

from rekindle.core.config import AXES, Settings
from rekindle.core.device.jax_settings import default_device, under_own_settings
from rekindle.core.device.place import Place
from rekindle.core.errors import ConfigError

_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The files in which Linux says how much memory a container may use."""


def device_of(asked: Any) -> jax.Device:
    """Return the device that `device=` of `open` asks for.

    Args:
        asked: a device, or a platform such as "gpu" with or without an index, as in "gpu:1"; None is the one that
            `jax_default_device` names, else JAX's first.

    Raises:
        ConfigError: there is no such device, or another process of `jax.distributed` has it.
    """
    if asked is None:
        asked = default_device() or jax.local_devices()[0]
    device = _named(asked) if isinstance(asked, str) else asked
    if not isinstance(device, jax.Device):
        raise ConfigError(f'device must be a platform such as "gpu", "gpu:1", or a jax.Device; got {asked!r:.80}')
    if device.process_index != jax.process_index():
        raise ConfigError(f"device {device} is of process {device.process_index}; this one has {_known()}")
    return device


def places_of(settings: Settings) -> list[Place]:
    """Return the devices that `device=`, `tensor=`, `data=` and `mesh=` of `open` ask for, those of the first lane.

    Returns:
        One place, or those that are left to choose from, from the fewest devices to the most.

    Raises:
        ConfigError: there are no such devices, or another process of `jax.distributed` has them.
    """
    if settings.mesh is not None:
        return [_place_of_mesh(settings.mesh)]
    first, tensor, data = device_of(settings.device), settings.tensor, settings.data
    groups = data * settings.lane_count
    alike = [each for each in jax.local_devices(backend=first.platform) if each.device_kind == first.device_kind]
    local = [device for device in alike if device.id >= first.id]
    if tensor is None:
        named = settings.device or default_device()
        alone = shares_memory(first) or not (named is None or (isinstance(named, str) and ":" not in named))
        tensor = 1 if alone or len(local) < groups else None
    if tensor is None:
        return choices(local, data, settings.lane_count)
    needed = data * tensor if shares_memory(first) else groups * tensor
    if len(local) < needed:
        sizes = {"replicas": settings.lane_count, "data": data, "tensor": tensor}
        what = " times ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
        raise ConfigError(
            f"{what} needs as many devices from {first} on, and there are {len(local)}; this process has {_known()}"
        )
    return [shared_by(local, tensor, data)]


def place_of_set(name: str, asked: Any) -> Place:
    """Return the devices that `prefill=` or `decode=` of `open` asks for.

    Args:
        name: the setting.
        asked: a device, as `device_of` takes it, or a sequence of such.

    Raises:
        ConfigError: there are no such devices, or they are not of one kind.
    """
    several = isinstance(asked, Sequence) and not isinstance(asked, str)
    devices = tuple(map(device_of, asked if several else [asked]))
    if not devices or len(set(devices)) < len(devices):
        raise ConfigError(f"{name} must be a device or a list of different devices, got {asked!r:.80}")
    if len({(device.platform, device.device_kind) for device in devices}) > 1:
        raise ConfigError(f"the devices of {name} must be of one kind, got {', '.join(map(str, devices))}")
    return Place(devices)


def lanes_of(place: Place, settings: Settings) -> list[Place]:
    """Return the places of all lanes, given that of the first, which `places_of` has found.

    On a CPU without so many devices, all lanes have the same.
    """
    count = len(place.devices)
    alike = jax.local_devices(backend=place.first.platform)
    others = [each for each in alike if each.device_kind == place.first.device_kind and each.id >= place.first.id]
    if len(others) < count * settings.lane_count:
        return [place] * settings.lane_count
    further = range(count, count * settings.lane_count, count)
    return [place, *(shared_by(others[start:], place.tensor, place.data) for start in further)]


def choices(devices: Sequence[jax.Device], data: int = 1, replicas: int = 1) -> list[Place]:
    """Return the places of so many groups, each of a number of devices that divides theirs, from one to all of them.

    Args:
        replicas: how many times so many groups there are to be.
    """
    most = len(devices) // (data * replicas)
    return [shared_by(devices, tensor, data) for tensor in range(1, most + 1) if most % tensor == 0]


def shared_by(devices: Sequence[jax.Device], tensor: int, data: int = 1) -> Place:
    """Return the first of these devices as a place, attached or not.

    All chips of a TPU are in the order that JAX has for such a mesh, by how they are wired.
    """
    chosen = devices[: data * tensor]
    if chosen[0].platform == "tpu" and len(chosen) == chosen[0].client.device_count():
        with suppress(NotImplementedError):  # jax knows of no better order
            chosen = [*create_device_mesh((data, tensor), chosen).flat]
    return Place(tuple(chosen), data)


def _place_of_mesh(mesh: Any) -> Place:
    if not isinstance(mesh, Mesh):
        raise ConfigError(f"mesh must be a jax.sharding.Mesh, which has devices, got {mesh!r:.80}")
    axes = sorted(range(len(mesh.axis_names)), key=lambda axis: (AXES + mesh.axis_names).index(mesh.axis_names[axis]))
    devices = tuple(np.transpose(mesh.devices, axes).flat)
    strangers = [device for device in devices if device.process_index != jax.process_index()]
    if strangers:
        raise ConfigError(f"mesh has {strangers[0]} of process {strangers[0].process_index}; this one has {_known()}")
    if len({(device.platform, device.device_kind) for device in devices}) > 1:
        raise ConfigError(f"the devices of a mesh must be of one kind, got {', '.join(map(str, devices))}")
    return Place(devices, mesh.shape.get("data", 1))


def places_over(asked: Any, settings: Settings) -> list[Place]:
    """Return as many devices of each process of `jax.distributed` as of the others, the first ones.

    Args:
        asked: a platform as `device=` of `open` names it, or None for jax's own choice.
        settings: whose `tensor` is the number of all of them.

    Returns:
        One place, or those that are left to choose from, from the fewest devices to the most.

    Raises:
        ConfigError: something else is asked for, or the processes have no such devices.
    """
    if not (asked is None or (isinstance(asked, str) and ":" not in asked)):
        raise ConfigError(f'with hosts, device must be None or a platform such as "gpu"; got {asked!r:.80}')
    try:
        known = sorted(jax.devices(asked), key=lambda device: device.id)
    except RuntimeError as error:
        raise ConfigError(f"device {asked!r} is not there; JAX has {_known()} ({error})") from error
    processes, tensor = jax.process_count(), settings.tensor
    of_processes = [[device for device in known if device.process_index == index] for index in range(processes)]
    fewest = min(map(len, of_processes))
    if tensor is None:
        most = 1 if shares_memory(known[0]) else fewest
        counts = [each for each in range(1, most + 1) if most % each == 0]
    elif tensor % processes == 0 and tensor // processes <= fewest:
        counts = [tensor // processes]
    else:
        raise ConfigError(
            f"tensor={tensor} must be a multiple of the {processes} processes that share the model, and at most "
            f"{processes * fewest}, since one of them has {fewest} devices"
        )
    return [Place(tuple(each for devices in of_processes for each in devices[:count])) for count in counts]


def put_on(device: jax.Device) -> Callable[[Any], jax.Array]:
    """Return a function that puts arrays on a device, from any thread."""
    return lambda array: under_own_settings(jax.device_put, array, device)


def memory_of(device: jax.Device) -> int | None:
    """Return the bytes of memory that programs on a device can use together; None if they are not known."""
    if shares_memory(device):
        return _own_memory()
    try:
        stats = device.memory_stats()
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # it is not attached
        stats = None
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else None


def shares_memory(device: jax.Device) -> bool:
    """Tell whether a device has no memory of its own, so that every program on this machine uses it too."""
    return str(device.platform) == "cpu"


def _own_memory() -> int | None:
    """Return the bytes of memory that this process can have: of the machine, or of the container that it is in."""
    if not hasattr(os, "sysconf"):
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            memory = min(memory, int(Path(limit).read_text()))
    return memory


def _named(name: str) -> jax.Device:
    platform, _, index = name.partition(":")
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError as error:  # JAX has no such platform, or cannot use it
        raise ConfigError(f"device {name!r} is not there; JAX has {_known()} ({error})") from error
    if index and not (index.isdecimal() and int(index) < len(devices)):
        raise ConfigError(f"device {name!r} is not there; JAX has {len(devices)} of {platform!r}, counted from 0")
    return devices[int(index or 0)]


def _known() -> str:
    return ", ".join(f"{device.platform}:{index}" for index, device in enumerate(jax.local_devices()))
