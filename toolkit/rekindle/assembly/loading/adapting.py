"""Put the arrays of adapters on devices."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rekindle.assembly.devices import put_on
from rekindle.assembly.loading.adapter_content import pack_adapter
from rekindle.core.device.place import WEIGHTS
from rekindle.core.device.programs.shapes import AdapterRoom
from rekindle.core.models.adapters.products import products_of
from rekindle.core.models.adapters.rows import Stacks
from rekindle.core.models.shard import Shard
from rekindle.formats.lora import Lora


def put_adapter(room: AdapterRoom, lora: Lora) -> Stacks:
    """Put an adapter on this process's devices, packed for each shard; return its arrays."""

    def arrays(shard: Shard) -> list[tuple[Any, Any]]:
        return pack_adapter(lora, products_of(room.config, shard), room.sizes, room.dtype, room.implementation)

    return _on_devices(room, arrays)


def put_empty(room: AdapterRoom) -> Stacks:
    """Put arrays of zeros for all adapters on this process's devices; return them."""

    def arrays(shard: Shard) -> list[tuple[Any, Any]]:
        forms = room.forms(shard, room.sizes.slots)
        return [(np.zeros(a.shape, a.dtype), np.zeros(b.shape, b.dtype)) for a, b in forms]

    return _on_devices(room, arrays)


def _on_devices(room: AdapterRoom, arrays_of: Callable[[Shard], list[tuple[Any, Any]]]) -> Stacks:
    by_shard: dict[Shard, list[tuple[Any, Any]]] = {}
    on_each = []
    for device, shard in room.place.local_shards:
        if shard not in by_shard:
            by_shard[shard] = arrays_of(shard)
        put = put_on(device)
        on_each.append([(put(a), put(b)) for a, b in by_shard[shard]])
    return tuple(
        (
            room.place.global_array([a for a, _ in product], WEIGHTS),
            room.place.global_array([b for _, b in product], WEIGHTS),
        )
        for product in zip(*on_each, strict=True)
    )
