"""Several residual streams: from embeddings, around a layer, and back to one (AltUp)."""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config import ModelConfig, StreamsConfig
from rekindle.core.models.layers import Linear, norm_of
from rekindle.core.models.weights.requests import JoinedTensors, WeightSource

SMALLEST = 1e-5
"""Lower bound of a mean square in a divisor."""


class Streams(nnx.Module, pytree=False):
    """The streams of all layers: projections of the embedding, with its magnitude, and the mean of projections back."""

    def __init__(self, config: StreamsConfig, model: ModelConfig, weights: WeightSource):
        names, hidden = model.names, model.hidden_size
        self.others = config.count - 1
        self.project = Linear(weights, hidden, {f"{names.streams_in}.{i}": hidden for i in range(self.others)})
        for i in range(self.others):
            setattr(self, f"back_{i}", Linear(weights, hidden, {f"{names.streams_out}.{i}": hidden}))

    def spread(self, x: jax.Array) -> jax.Array:
        """Map embeddings (token, hidden) to streams (stream, token, hidden); the first is the embedding."""
        others = self.project(x).reshape(len(x), self.others, -1).swapaxes(0, 1)
        return jnp.concatenate([x[None], _with_magnitude(others, x[None])])

    def merge(self, streams: jax.Array) -> jax.Array:
        """Map streams (stream, token, hidden) to (token, hidden)."""
        first = streams[0]
        others = [getattr(self, f"back_{i}")(streams[i + 1]) for i in range(self.others)]
        return jnp.stack([first, *(_with_magnitude(each, first) for each in others)]).mean(0)


class AltUp(nnx.Module, pytree=False):
    """A layer's prediction of all streams from all, and their correction by the result of the active one.

    Its small matrices are float32, and the same on all devices.

    Args:
        config: the streams.
        model: the model.
        weights: the source of the tensors.
        prefix: the prefix of their names.
    """

    def __init__(self, config: StreamsConfig, model: ModelConfig, weights: WeightSource, prefix: str):
        self.config, count, hidden = config, config.count, model.hidden_size

        def matrix(name: str, *shape: int) -> nnx.Param[jax.Array]:
            return nnx.Param(weights.get(JoinedTensors({f"{prefix}.{name}": shape}, False)))

        self.router_norm = norm_of(weights, f"{prefix}.router_norm", hidden, model.norm)
        self.router = matrix("modality_router.weight", count, hidden)
        self.predicts = matrix("prediction_coefs.weight", count * count, count)
        self.corrects = matrix("correction_coefs.weight", count, count)
        self.scale = matrix("correct_output_scale", hidden) if config.scaled else None

    def predict(self, streams: jax.Array) -> jax.Array:
        """Map streams (stream, token, hidden) to their prediction before the layer."""
        count = self.config.count
        coefficients = _product(self._route(streams[self.config.active]), self.predicts)
        by_stream = coefficients.reshape(-1, count, count)
        return streams + jnp.einsum("tij,jth->ith", by_stream, streams, precision=jax.lax.Precision.HIGHEST)

    def correct(self, predicted: jax.Array, active: jax.Array) -> jax.Array:
        """Return streams (stream, token, hidden) after a layer.

        Args:
            predicted: the result of `predict`.
            active: (token, hidden), the result of the layer for the active stream.
        """
        coefficients = _product(self._route(active), self.corrects) + 1
        return predicted + (active - predicted[self.config.active])[None] * coefficients.T[:, :, None]

    def scaled(self, x: jax.Array) -> jax.Array:
        """Return the active stream (token, hidden) as the source of features."""
        return x if self.scale is None else x * self.scale[...][None]

    def _route(self, x: jax.Array) -> jax.Array:
        """Return a token's weights, (token, stream), from its active stream."""
        return jnp.tanh(_product(self.router_norm(x) / x.shape[1], self.router))


def _product(x: jax.Array, matrix: nnx.Param[jax.Array]) -> jax.Array:
    """Map (token, in) by a matrix of few outputs, kept as its elements."""
    weight = matrix[...].reshape(-1, x.shape[1])
    return jnp.einsum("ti,oi->to", x, weight, precision=jax.lax.Precision.HIGHEST)


def _with_magnitude(x: jax.Array, of: jax.Array) -> jax.Array:
    """Return features (..., hidden) with the root mean square of others, of the same rank."""
    own = jnp.maximum(jnp.square(x).mean(-1, keepdims=True), SMALLEST)
    return x * jnp.sqrt(jnp.square(of).mean(-1, keepdims=True)) / jnp.sqrt(own)
