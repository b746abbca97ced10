"""The devices of a session, and how its arrays lie on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from rekindle.core.models.shard import DATA, TENSOR, Order, Shard

SAME = PartitionSpec()
"""The same array on each device."""
WEIGHTS = PartitionSpec(TENSOR)
"""Weights: each device has its share, in a form of its own, and the shares lie one behind the other."""
ROWS = PartitionSpec(DATA)
"""Slots, and what a tick takes and gives: each group has its own, one behind the other."""
PAGES = PartitionSpec(DATA, None, TENSOR)
"""Pages of one layer: each group has its own, and each device some of the heads."""
PAGE = PartitionSpec(None, None, TENSOR)
"""One page of all layers: each device has some of the heads."""


@dataclass(frozen=True)
class Heads:
    """The heads of keys in the pages of devices of which some have the same, or fewer than others.

    Attributes:
        first: where each head is.
        each: which head is at each place.
    """

    first: Order
    each: Order


@dataclass(frozen=True, slots=True)
class Place:
    """The devices of a session, in order; all of one kind.

    One device is a place as if there were no others: its programs know of no mesh.

    Attributes:
        devices: those of the first group, then those of the next.
        data: how many groups there are. The devices of a group share a model, and compute the same rows.
    """

    devices: tuple[jax.Device, ...]
    data: int = 1

    def __str__(self) -> str:
        ids = [device.id for device in self.devices]
        first, last = min(ids), max(ids)
        together = sorted(ids) == list(range(first, last + 1))
        named = (f"{first} to {last}" if last > first else str(first)) if together else ",".join(map(str, ids))
        groups = f" in {self.data} groups" if self.data > 1 else ""
        several = f" of {self.processes} processes" if self.processes > 1 else ""
        return f"{self.first.platform}:{named}{groups}{several}"

    @property
    def first(self) -> jax.Device:
        """The device that stands for all where they do not differ."""
        return self.devices[0]

    @property
    def shards(self) -> list[Shard]:
        """The share of each device of a group."""
        return [Shard(rank, self.tensor, self.data) for rank in range(self.tensor)]

    @property
    def tensor(self) -> int:
        """The number of devices that share a model."""
        return len(self.devices) // self.data

    def own(self, number: jax.Array, size: int, other: int) -> jax.Array:
        """Return where a page or a slot is in the device's group, for a program that is run on each device.

        Args:
            number: of all groups, of which each has `size`.
            other: what stands for one of another group.
        """
        if self.data == 1:
            return number
        return jnp.where(number // size == lax.axis_index(DATA), number % size, other)

    def of_group(self, x: jax.Array, number: jax.Array, size: int) -> jax.Array:
        """Return the array of the group that has a page or a slot, for a program that is run on each device."""
        return x if self.data == 1 else lax.all_gather(x, DATA)[number // size]

    @property
    def processes(self) -> int:
        """The number of the processes of `jax.distributed` that have these devices."""
        return len({device.process_index for device in self.devices})

    @property
    def own_shards(self) -> list[tuple[jax.Device, Shard]]:
        """The devices of this process, each with its share."""
        pairs = zip(self.devices, self.shards * self.data, strict=True)
        return [(device, shard) for device, shard in pairs if device.process_index == jax.process_index()]

    def heads(self, queries: int, keys: int) -> "Heads | None":
        """Return how the heads of keys lie in pages; None if each is there once, in order."""
        each = np.concatenate([shard.heads(queries, keys)[1] for shard in self.shards])
        if len(each) == keys:
            return None
        return Heads(np.array([int(np.argmax(each == key)) for key in range(keys)]), np.maximum(each, 0))

    def sharding(self, spec: PartitionSpec = SAME) -> Sharding:
        """Return how an array of this kind lies on the devices."""
        return SingleDeviceSharding(self.first) if len(self.devices) == 1 else NamedSharding(self._mesh, spec)

    def mapped(self, function: Callable[..., Any], into: Any, out: Any) -> Callable[..., Any]:
        """Return a function of whole arrays that runs `function` on each device with its shares.

        Args:
            into: the kind of each argument.
            out: the kinds of the results.
        """
        if len(self.devices) == 1:
            return function
        # jax cannot follow what is the same on all devices through the loops of kernels.
        return jax.shard_map(function, mesh=self._mesh, in_specs=into, out_specs=out, check_vma=False)

    def whole(self, share: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        """Return the form of an array of which each device has such a share."""
        times = {DATA: self.data, TENSOR: self.tensor}
        shape = list(share.shape)
        for axis, name in enumerate(spec):
            shape[axis] *= times.get(name, 1)
        return jax.ShapeDtypeStruct(tuple(shape), share.dtype)

    def joined(self, shares: list[jax.Array], spec: PartitionSpec) -> jax.Array:
        """Return the array of which each device has a share; these are the shares of this process's devices."""
        if len(self.devices) == 1:
            return shares[0]
        form = self.whole(jax.ShapeDtypeStruct(shares[0].shape, shares[0].dtype), spec)
        return jax.make_array_from_single_device_arrays(form.shape, self.sharding(spec), shares)

    @property
    def _mesh(self) -> Mesh:
        return Mesh(np.array(self.devices).reshape(self.data, self.tensor), (DATA, TENSOR))
