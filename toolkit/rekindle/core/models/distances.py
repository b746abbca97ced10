"""Summands of attention scores by the distance of a key from its query."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.errors import ConfigError
from rekindle.core.models.config import DistanceBias, LinearBias, ModelConfig
from rekindle.core.models.weights.requests import JoinedTensors, WeightSource


class Distances(nnx.Module, pytree=False):
    """A learned table of summands by buckets of distances, of every head.

    Raises:
        ConfigError: heads are divided over devices.

    Attributes:
        buckets: the bucket of each distance from `-farthest` to `farthest`.
        heads: the number of heads.
        table: (buckets * heads,) float32.
    """

    def __init__(self, config: DistanceBias, model: ModelConfig, weights: WeightSource):
        check_undivided(weights)
        self.heads = model.attentions[0].heads
        self.buckets = tuple(buckets_of(config).tolist())
        table = JoinedTensors({f"{model.names.distances}.weight": (config.buckets, self.heads)}, False)
        self.table = nnx.Param(weights.get(table))

    def __call__(self) -> jax.Array:
        """Return the summand of each head and distance, (heads, 2 * farthest + 1) float32, for `api.attend_blocks`."""
        return self.table[...].reshape(-1, self.heads)[np.array(self.buckets)].T


class LinearDistances:
    """Summands of scores that fall linearly with the distance, by a slope of each head.

    Raises:
        ConfigError: heads are divided over devices.
    """

    def __init__(self, config: LinearBias, model: ModelConfig, weights: WeightSource):
        check_undivided(weights)
        self._slopes, self._farthest = slopes_of(model.attentions[0].heads), config.farthest

    def __call__(self) -> jax.Array:
        """Return the summand of each head and distance, (heads, 2 * farthest + 1) float32, for `api.attend_blocks`."""
        distances = np.abs(np.arange(-self._farthest, self._farthest + 1)).astype(np.float32)
        return jnp.asarray(np.array(self._slopes, np.float32)[:, None] * -distances)


def slopes_of(heads: int) -> list[float]:
    """Return the slope of each head (Press et al., 2022, arXiv:2108.12409): 1/2, 1/4, ... 1/256 for eight.

    If the number is no power of two, the rest are every second one of twice as many.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return slopes if power == heads else slopes + slopes_of(2 * power)[::2][: heads - power]


def check_undivided(weights: WeightSource) -> None:
    """Raise ConfigError if heads are divided over devices."""
    if weights.shard.of > 1:
        raise ConfigError(
            f"tensor must be 1 for this model, got {weights.shard.of}: its scores have summands by distance, which are "
            "not divided over devices. Use data= for several devices"
        )


def distances_of(
    config: DistanceBias | LinearBias, model: ModelConfig, weights: WeightSource
) -> Distances | LinearDistances:
    """Return the summands of a model."""
    return (
        Distances(config, model, weights)
        if isinstance(config, DistanceBias)
        else LinearDistances(config, model, weights)
    )


def buckets_of(config: DistanceBias) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bucket of each distance from `-farthest` to `farthest` (Raffel et al., 2020, arXiv:1910.10683)."""
    distances = np.arange(-config.farthest, config.farthest + 1)
    half = config.buckets // 2
    single, far = half // 2, np.abs(distances)
    # In float32, as the models were trained: a distance at an edge may be in either bucket.
    ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(single))
    wide = single + (ratio / np.float32(np.log(config.farthest / single)) * (half - single)).astype(np.int32)
    result: np.ndarray[Any, np.dtype[np.int64]] = np.where(far < single, far, np.minimum(wide, half - 1)) + half * (
        distances > 0
    )
    return result
