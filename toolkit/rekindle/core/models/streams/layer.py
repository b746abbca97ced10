"""One layer of a decoder with several residual streams."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from rekindle.core.models.config import ModelConfig, StreamsConfig
from rekindle.core.models.mixing import LayerMemory, Mixer
from rekindle.core.models.rope import Positions
from rekindle.core.models.streams.altup import AltUp
from rekindle.core.models.streams.features import FeatureBranch
from rekindle.core.models.taps.tap import LayerTap
from rekindle.core.models.weights.requests import WeightSource


class StreamsLayer(nnx.Module, pytree=False):
    """A layer of the active stream, between the prediction and the correction of all streams.

    Args:
        layer: the layer, without features.
        config: the streams.
        model: the model.
        weights: the source of the tensors.
        prefix: the prefix of their names.
    """

    def __init__(
        self, layer: Callable[..., Any], config: StreamsConfig, model: ModelConfig, weights: WeightSource, prefix: str
    ):
        self.layer, self.active, features = layer, config.active, model.features
        self.altup = AltUp(config, model, weights, f"{prefix}.{model.names.altup}")
        self.features = None if features is None else FeatureBranch(features, model, weights, prefix)

    def __call__(
        self,
        streams: jax.Array,
        positions: Positions | None,
        memory: LayerMemory,
        mixer: Mixer,
        features: jax.Array | None = None,
        tap: LayerTap | None = None,
    ) -> tuple[jax.Array, LayerMemory]:
        """Map streams (stream, token, hidden) and the memory of this layer to their new values.

        Args:
            streams: the residual streams.
            positions, memory, mixer, features, tap: as in `Layer`.
        """
        predicted = self.altup.predict(streams)
        active, memory = self.layer(predicted[self.active], positions, memory, mixer, None, tap)
        streams = self.altup.correct(predicted, active)
        if self.features is not None:
            assert features is not None
            addend = self.features(self.altup.scaled(streams[self.active]), features)
            streams = streams.at[1:].add(addend[None])
        return streams, memory
