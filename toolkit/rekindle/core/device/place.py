"""Devices of a session, and the sharding of its arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from rekindle.core.models.config.partition import Order
from rekindle.core.models.shard import DATA, TENSOR, Shard

SAME = PartitionSpec()
"""The same array on each device."""
WEIGHTS = PartitionSpec(TENSOR)
"""Weights: per-device shards, each packed independently, concatenated along axis 0."""
ROWS = PartitionSpec(DATA)
"""Slots, tick inputs and tick outputs: arrays of each group, concatenated along axis 0."""
STATES = PartitionSpec((DATA, TENSOR))
"""States of slots: arrays of each device, concatenated along axis 0."""
PAGES = PartitionSpec(DATA, None, TENSOR)
"""Pages of one layer: split by group, and within a group by heads."""
PAGE = PartitionSpec(None, None, TENSOR)
"""One page over all layers, split by heads."""


@dataclass(frozen=True)
class Heads:
    """Layout of KV heads in pages, or of other units, if devices hold them twice, with padding, or in another order.

    Attributes:
        first: for each head, the index of its first copy.
        each: for each index, its head.
    """

    first: Order
    each: Order


def layout_of(each: Order, count: int) -> Heads | None:
    """Return the layout of so many heads, or other units, at these places; None if each is there once, in order.

    Args:
        each: the head at each index; -1 for padding.
        count: the number of heads.
    """
    if np.array_equal(each, np.arange(count)):
        return None
    first = np.full(count, -1)
    for place, head in reversed(list(enumerate(each))):
        if head >= 0:
            first[head] = place
    return Heads(first, np.maximum(each, 0))


@dataclass(frozen=True, slots=True)
class Place:
    """The devices of a session, in order; all of one kind.

    Programs of a single device have no mesh.

    Attributes:
        devices: the devices, group by group.
        data: the number of groups. The devices of a group share a model, and compute the same rows.
    """

    devices: tuple[jax.Device, ...]
    data: int = 1

    def __str__(self) -> str:
        ids = [device.id for device in self.devices]
        first, last = min(ids), max(ids)
        is_contiguous = sorted(ids) == list(range(first, last + 1))
        numbers = (f"{first} to {last}" if last > first else str(first)) if is_contiguous else ",".join(map(str, ids))
        groups = f" in {self.data} groups" if self.data > 1 else ""
        several = f" of {self.processes} processes" if self.processes > 1 else ""
        return f"{self.first.platform}:{numbers}{groups}{several}"

    @property
    def first(self) -> jax.Device:
        """The first device, representative of all."""
        return self.devices[0]

    @property
    def shards(self) -> list[Shard]:
        """The shard of each device of a group."""
        return [Shard(rank, self.tensor, self.data) for rank in range(self.tensor)]

    @property
    def tensor(self) -> int:
        """The number of devices in a group: the tensor-parallel size."""
        return len(self.devices) // self.data

    def local_index(self, number: jax.Array, size: int, other: int) -> jax.Array:
        """Return the index of a page or slot within the device's group, inside a per-device program.

        Args:
            number: the number of the page or slot among those of all groups, with `size` in each group.
            other: the index returned for a page or slot of another group.
        """
        if self.data == 1:
            return number
        return jnp.where(number // size == lax.axis_index(DATA), number % size, other)

    def from_group(self, x: jax.Array, number: jax.Array, size: int) -> jax.Array:
        """Return the array of the group of a page or slot, in a per-device program; `number` as in `local_index`."""
        return x if self.data == 1 else lax.all_gather(x, DATA)[number // size]

    @property
    def processes(self) -> int:
        """The number of `jax.distributed` processes with these devices."""
        return len({device.process_index for device in self.devices})

    @property
    def local_shards(self) -> list[tuple[jax.Device, Shard]]:
        """The devices of this process, each with its shard."""
        pairs = zip(self.devices, self.shards * self.data, strict=True)
        return [(device, shard) for device, shard in pairs if device.process_index == jax.process_index()]

    def heads(self, queries: int, keys: int) -> "Heads | None":
        """Return the layout of KV heads in pages; None if each head exists once, in order."""
        return layout_of(np.concatenate([shard.heads(queries, keys)[1] for shard in self.shards]), keys)

    def sharding(self, spec: PartitionSpec = SAME) -> Sharding:
        """Return the sharding of an array with this partition spec."""
        return SingleDeviceSharding(self.first) if len(self.devices) == 1 else NamedSharding(self._mesh, spec)

    def on_each_device(self, function: Callable[..., Any], into: Any, out: Any) -> Callable[..., Any]:
        """Return a function of global arrays, which runs `function` on each device with its shards.

        Args:
            into: the partition spec of each argument.
            out: the partition specs of the results.
        """
        if len(self.devices) == 1:
            return function
        # check_vma=False: jax cannot track replicated values through the loops of kernels.
        return jax.shard_map(function, mesh=self._mesh, in_specs=into, out_specs=out, check_vma=False)

    def global_shape(self, shard: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        """Return the shape and dtype of the global array with shards of this shape."""
        times = {DATA: self.data, TENSOR: self.tensor, (DATA, TENSOR): len(self.devices)}
        shape = list(shard.shape)
        for axis, name in enumerate(spec):
            shape[axis] *= times.get(name, 1)
        return jax.ShapeDtypeStruct(tuple(shape), shard.dtype)

    def global_array(self, shards: list[jax.Array], spec: PartitionSpec) -> jax.Array:
        """Return the global array with these shards on the devices of this process."""
        if len(self.devices) == 1:
            return shards[0]
        form = self.global_shape(jax.ShapeDtypeStruct(shards[0].shape, shards[0].dtype), spec)
        return jax.make_array_from_single_device_arrays(form.shape, self.sharding(spec), shards)

    @property
    def _mesh(self) -> Mesh:
        return Mesh(np.array(self.devices).reshape(self.data, self.tensor), (DATA, TENSOR))
