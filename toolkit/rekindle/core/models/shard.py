"""Tensor parallelism: one device's shard of heads, inner features and vocabulary.

The partition is Megatron's (Shoeybi et al., 2019, arXiv:1909.08053).
"""

from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rekindle.core.models.config.partition import Order, heads_of, units_of

TENSOR: Final = "tensor"
"""The mesh axis of tensor parallelism."""
DATA: Final = "data"
"""The mesh axis of data parallelism: it divides the rows of a tick, and each group along it has the whole model."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The shard of one device. A program has the same shapes on all devices, and sums over the axis `TENSOR`.

    Attributes:
        rank: the device's index in its group.
        of: the number of devices in a group.
        groups: the number of groups; each computes other rows.
    """

    rank: int = 0
    of: int = 1
    groups: int = 1

    def units(self, count: int) -> Order:
        """Return the indices of this device's units, padded with -1 to the same number on all devices."""
        return units_of(count, self.rank, self.of)

    def heads(self, queries: int, keys: int) -> tuple[Order, Order]:
        """Return the indices of this device's query heads and KV heads, padded with -1; see `heads_of`."""
        return heads_of(queries, keys, self.rank, self.of)

    def sum(self, x: jax.Array) -> jax.Array:
        """Sum over all devices."""
        return x if self.of == 1 else lax.psum(x, TENSOR)

    def anywhere(self, condition: jax.Array) -> jax.Array:
        """Return the logical OR over all groups, so that all take the same branch of a program."""
        return condition if self.groups == 1 else lax.pmax(condition.astype(jnp.int32), DATA) > 0

    def gather(self, x: jax.Array, axis: int) -> jax.Array:
        """Concatenate the arrays of all devices."""
        return x if self.of == 1 else lax.all_gather(x, TENSOR, axis=axis, tiled=True)


@dataclass(frozen=True, slots=True)
class HeadShares:
    """Weights of each device's features in a mean over all heads, with duplicate heads counted once.

    Attributes:
        of: the number of devices in a group.
        queries, keys: the number of query heads and of KV heads.
        side: 0 for query heads, 1 for KV heads.
        head_dim: the size of a head.
    """

    of: int
    queries: int
    keys: int
    side: int
    head_dim: int

    def local(self) -> jax.Array:
        """Return the weights of this device's features, (features,) float32."""
        heads = np.stack([Shard(rank, self.of).heads(self.queries, self.keys)[self.side] for rank in range(self.of)])
        copies = np.bincount(heads[heads >= 0])
        shares = np.where(heads < 0, 0, 1 / (copies[heads] * len(copies) * self.head_dim)).astype(np.float32)
        return jnp.asarray(np.repeat(shares, self.head_dim, axis=1))[lax.axis_index(TENSOR)]


WHOLE: Final = Shard()
"""The shard of a single device: the whole model."""


def compose(order: Order | None, rows: Order | None) -> Order | None:
    """Return the order of selected rows after an order; None stands for the identity."""
    if order is None or rows is None:
        return rows if order is None else order
    result: Order = order[rows]
    return result


def rows_of(*blocks: tuple[Order, int, int]) -> Order:
    """Return the row indices of blocks of units. Padding units (-1) get the rows of unit 0.

    Args:
        blocks: tuples of (unit indices, rows of a unit, first row of unit 0).
    """
    return np.concatenate([start + spread(np.maximum(units, 0), size) for units, size, start in blocks])


def spread(units: Order, size: int) -> Order:
    """Return the element indices of units of this size, concatenated; -1 for elements of padding units."""
    elements = units[:, None] * size + np.arange(size)[None]
    result: Order = np.where(units[:, None] < 0, -1, elements).reshape(-1)
    return result
