"""Summands of attention scores by the distance of a key from its query."""

from typing import Any

import jax
import numpy as np
from flax import nnx

from rekindle.core.errors import ConfigError
from rekindle.core.models.config import DistanceBias, ModelConfig
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
        if weights.shard.of > 1:
            raise ConfigError(
                f"tensor must be 1 for this model, got {weights.shard.of}: its scores have learned summands by "
                "distance, which are not divided over devices. Use data= for several devices"
            )
        self.heads = model.attentions[0].heads
        self.buckets = tuple(buckets_of(config).tolist())
        table = JoinedTensors({f"{model.names.distances}.weight": (config.buckets, self.heads)}, False)
        self.table = nnx.Param(weights.get(table))

    def __call__(self) -> jax.Array:
        """Return the summand of each head and distance, (heads, 2 * farthest + 1) float32, for `api.attend_blocks`."""
        return self.table[...].reshape(-1, self.heads)[np.array(self.buckets)].T


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
