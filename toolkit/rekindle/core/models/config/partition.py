"""The division of units and heads between the devices of a group, by numbers alone."""

from typing import Any, TypeAlias

import numpy as np

Order: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]


def units_of(count: int, rank: int, devices: int) -> Order:
    """Return the indices of a device's units, padded with -1 to the same number on all devices."""
    size = -(-count // devices)
    indices = np.arange(rank * size, (rank + 1) * size)
    return np.where(indices < count, indices, -1)


def heads_of(queries: int, keys: int, rank: int, devices: int) -> tuple[Order, Order]:
    """Return the indices of a device's query heads and KV heads, padded with -1.

    All query heads of a KV head are on the same device, unless there are fewer KV heads than devices. Then several
    devices have the same KV head, and divide its query heads.
    """
    group = queries // keys
    if keys >= devices:
        own = units_of(keys, rank, devices)
        return np.where(own[:, None] < 0, -1, own[:, None] * group + np.arange(group)[None]).reshape(-1), own
    key_of = np.arange(devices) * keys // devices
    key = key_of[rank]
    size = -(-group // min(np.bincount(key_of)))
    first = (rank - int(np.argmax(key_of == key))) * size
    own = np.arange(first, first + size)
    return np.where(own < group, key * group + own, -1), np.array([key])


def elements_of(*blocks: tuple[Order, int, int]) -> Order:
    """Return the indices of the elements of units in some blocks; -1 for elements of padding units.

    Args:
        blocks: tuples of (unit indices, elements of a unit, first element of unit 0).
    """
    parts = []
    for units, size, start in blocks:
        elements = start + units[:, None] * size + np.arange(size)[None]
        parts.append(np.where(units[:, None] < 0, -1, elements).reshape(-1))
    return np.concatenate(parts)
