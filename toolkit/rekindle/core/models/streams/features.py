"""Features of tokens for each layer: a table of their own, and a branch of each layer (Gemma 3n, Gemma 4)."""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config import ModelConfig, TokenFeatures
from rekindle.core.models.layers import ACTIVATIONS, Linear, Table, norm_of
from rekindle.core.models.weights.requests import WeightSource


class FeatureTable(nnx.Module, pytree=False):
    """The source of the features of all layers: the mean of a table's row and of the projected embedding."""

    def __init__(self, config: TokenFeatures, model: ModelConfig, weights: WeightSource):
        names, width = model.names, model.num_layers * config.size
        self.config, self.hidden, self.layers = config, model.hidden_size, model.num_layers
        self.table = Table(weights, names.features, (config.vocab_size, width))
        self.projection = Linear(weights, model.hidden_size, {names.features_projection: width})
        self.norm = norm_of(weights, names.features_norm, config.size, model.norm)

    def __call__(self, tokens: jax.Array, embeddings: jax.Array) -> jax.Array:
        """Return the features of tokens with these embeddings, (token, layers, size) float32."""
        shape = (len(tokens), self.layers, self.config.size)
        # The factor of the table is rounded to its dtype, as in Gemma's training.
        factor = jnp.asarray(self.config.size**0.5, self.table.dtype).astype(jnp.float32)
        rows = self.table(jnp.where(tokens < self.config.vocab_size, tokens, 0)) * factor
        context = self.norm((self.projection(embeddings) * self.hidden**-0.5).reshape(shape))
        return (context + rows.reshape(shape)) * 2**-0.5


class FeatureBranch(nnx.Module, pytree=False):
    """A layer's use of its features: they multiply an activated projection of the residual stream."""

    def __init__(self, config: TokenFeatures, model: ModelConfig, weights: WeightSource, prefix: str):
        names, hidden = model.names, model.hidden_size
        self.activation = ACTIVATIONS[config.activation]
        self.gate = Linear(weights, hidden, {f"{prefix}.{names.feature_gate}": config.size})
        self.out = Linear(weights, config.size, {f"{prefix}.{names.feature_out}": hidden})
        self.norm = norm_of(weights, f"{prefix}.{names.after_features}", hidden, model.norm)

    def __call__(self, x: jax.Array, features: jax.Array) -> jax.Array:
        """Return the summand of (token, hidden) for a layer's features, (token, size)."""
        return self.norm(self.out(self.activation(self.gate(x)) * features))
