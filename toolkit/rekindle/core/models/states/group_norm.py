"""Normalisation of groups of heads, on one device or on several."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from rekindle.core.models.config import Mamba2, Norm
from rekindle.core.models.shard import TENSOR, Shard, rows_of
from rekindle.core.models.states.parts import vector
from rekindle.core.models.weights.requests import WeightSource
from rekindle_kernels import layers as kernels


class GroupNorm(nnx.Module, pytree=False):
    """RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467) of all features of a group of heads together."""

    def __init__(self, config: Mamba2, norm: Norm, weights: WeightSource, name: str):
        self.config, self.norm, self.shard = config, norm, weights.shard
        self.implementation = weights.implementation
        heads, groups = self.shard.heads(config.heads, config.groups)
        rows = None if self.shard.of == 1 else rows_of((heads, config.head_size, 0))
        self.weight = vector(weights, f"{name}.weight", (config.heads * config.head_size,), rows)
        self.heads, self.groups = len(heads), len(groups)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (token, heads * head_size)."""
        if self.config.divides_groups(self.shard.of):
            y = x.reshape(len(x), self.heads, -1)
            y = y * self._factors(jnp.square(y).sum(-1))[:, :, None]
        else:
            # XLA sums a row in an order of its own for each number of rows; the native kernel has one order.
            y = x.reshape(len(x), self.groups, -1)
            ones = jnp.ones(y.shape[2], jnp.float32)
            y = kernels.rms_norm(y, ones, self.norm.eps, implementation=self.implementation)
        return y.reshape(x.shape) * self.weight[...][None]

    def _factors(self, squares: jax.Array) -> jax.Array:
        """Return the factor of each head for the sums of its squares (token, heads), by those of its whole group."""
        config = self.config
        members = jnp.asarray(members_of(config, self.shard.of))[lax.axis_index(TENSOR)]
        sums = self.shard.sum((squares[:, :, None] * members[None]).sum(1))
        factors = lax.rsqrt(sums / (config.heads // config.groups * config.head_size) + self.norm.eps)
        return (factors[:, None] * members[None]).sum(2)


def members_of(config: Mamba2, devices: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return 1 for each head of a device in a group, else 0: (devices, heads, groups)."""
    heads = np.stack([Shard(rank, devices).heads(config.heads, config.groups)[0] for rank in range(devices)])
    group = np.where(heads < 0, -1, heads * config.groups // config.heads)
    return np.asarray(group[:, :, None] == np.arange(config.groups), np.float32)
