"""One device's share of a model that is cut over several devices: heads, inner features, tokens of the vocabulary.

Megatron cuts models so (Shoeybi et al., 2019, arXiv:1909.08053).
"""

from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

TENSOR: Final = "tensor"
"""The name of the axis of a mesh over which a model is cut."""
DATA: Final = "data"
"""The name of the axis over which the rows of a tick are divided; each group along it has the whole model."""

Order = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True, slots=True)
class Shard:
    """The share of one device. A program has the same shapes on all of them, and sums over the axis `TENSOR`.

    Attributes:
        rank: the device's number among those that share a model.
        of: how many these are.
        groups: how many times there are so many devices, which compute other rows.
    """

    rank: int = 0
    of: int = 1
    groups: int = 1

    def units(self, count: int) -> Order:
        """Return which of so many units this device has: as many as each other; -1 stands for none."""
        size = -(-count // self.of)
        found = np.arange(self.rank * size, (self.rank + 1) * size)
        return np.where(found < count, found, -1)

    def heads(self, queries: int, keys: int) -> tuple[Order, Order]:
        """Return which heads of queries, and of keys, this device has; -1 stands for none.

        The heads of queries that share a head of keys are together. If there are fewer heads of keys than devices,
        several devices have the same one, and share out its queries.
        """
        group = queries // keys
        if keys >= self.of:
            own = self.units(keys)
            return np.where(own[:, None] < 0, -1, own[:, None] * group + np.arange(group)[None]).reshape(-1), own
        key_of = np.arange(self.of) * keys // self.of
        key = key_of[self.rank]
        size = -(-group // min(np.bincount(key_of)))
        first = (self.rank - int(np.argmax(key_of == key))) * size
        own = np.arange(first, first + size)
        return np.where(own < group, key * group + own, -1), np.array([key])

    def sum(self, x: jax.Array) -> jax.Array:
        """Return the sum over all devices."""
        return x if self.of == 1 else lax.psum(x, TENSOR)

    def anywhere(self, truth: jax.Array) -> jax.Array:
        """Return whether something is true in any group, so that all groups take the same branch of a program."""
        return truth if self.groups == 1 else lax.pmax(truth.astype(jnp.int32), DATA) > 0

    def joined(self, x: jax.Array, axis: int) -> jax.Array:
        """Return the arrays of all devices, one behind the other."""
        return x if self.of == 1 else lax.all_gather(x, TENSOR, axis=axis, tiled=True)


@dataclass(frozen=True, slots=True)
class HeadShares:
    """The share that the features of each device's heads have in a mean over all heads.

    Attributes:
        of: how many devices share the model.
        queries, keys: the number of heads of each.
        side: 0 for the heads of queries, 1 for those of keys.
        head_dim: the features of a head.
    """

    of: int
    queries: int
    keys: int
    side: int
    head_dim: int

    def here(self) -> jax.Array:
        """Return the shares of this device's features, (features,) float32."""
        there = np.stack([Shard(rank, self.of).heads(self.queries, self.keys)[self.side] for rank in range(self.of)])
        devices = np.bincount(there[there >= 0])
        shares = np.where(there < 0, 0, 1 / (devices[there] * len(devices) * self.head_dim)).astype(np.float32)
        return jnp.asarray(np.repeat(shares, self.head_dim, axis=1))[lax.axis_index(TENSOR)]


WHOLE: Final = Shard()
"""All of a model, on one device."""


def composed(order: Order | None, rows: Order | None) -> Order | None:
    """Return the order of some rows of what has an order itself."""
    if order is None or rows is None:
        return rows if order is None else order
    chosen: Order = order[rows]
    return chosen


def rows_of(*blocks: tuple[Order, int, int]) -> Order:
    """Return the rows of some units; those of a unit that is not there are of the first one.

    Args:
        blocks: each as (units, the rows of one, the row with which they begin).
    """
    return np.concatenate([start + spread(np.maximum(units, 0), size) for units, size, start in blocks])


def spread(units: Order, size: int) -> Order:
    """Return the numbers of each unit, one after the other; -1 for those of a unit that is not there."""
    numbers = units[:, None] * size + np.arange(size)[None]
    found: Order = np.where(units[:, None] < 0, -1, numbers).reshape(-1)
    return found
