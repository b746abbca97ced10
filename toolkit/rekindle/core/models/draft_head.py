"""The draft head of a model: one more layer, which guesses the token after the next one.

It is the first module of multi-token prediction (DeepSeek-AI, 2024, arXiv:2412.19437, section 2.2), with the embedding
and the output projection of the model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config import DraftHeadConfig, ModelConfig
from rekindle.core.models.layer import layer_of
from rekindle.core.models.layers import Linear, norm_of
from rekindle.core.models.mixing import LayerMemory, Mixer
from rekindle.core.models.rope import position_key, positions_of
from rekindle.core.models.weights.requests import WeightSource


class DraftHead(nnx.Module, pytree=False):
    """A layer over the hidden state of each token and the embedding of the token after it."""

    def __init__(self, model: ModelConfig, config: DraftHeadConfig, weights: WeightSource):
        assert config.layer.attention is not None, "a draft head without attention"
        hidden = model.hidden_size
        self.position_key = position_key(config.layer.attention)
        self.embedding_norm = norm_of(weights, config.embedding_norm, hidden, model.norm)
        self.hidden_norm = norm_of(weights, config.hidden_norm, hidden, model.norm)
        self.join = Linear(weights, 2 * hidden, {config.join: hidden})
        self.layer = layer_of(model, config.layer, weights, config.prefix)
        self.norm = norm_of(weights, config.norm, hidden, model.norm)

    def __call__(
        self,
        embeddings: jax.Array,
        positions: jax.Array,
        hidden: jax.Array,
        memory: LayerMemory,
        mixer: Mixer,
        lengths: jax.Array,
    ) -> tuple[jax.Array, LayerMemory]:
        """Return normalised (token, hidden) for the model's output projection, and the memory.

        Args:
            embeddings: (token, hidden) float32, the embedding of the token after each token.
            positions, mixer, lengths: see `Decoder.__call__`.
            hidden: (token, hidden) float32, the normalised output of the model's layers.
            memory: the pages and states of all layers; the pages of the head are last.
        """
        *pages, own = memory.pages
        at = positions_of(self.position_key, positions, lengths)
        x = self.join(jnp.concatenate([self.embedding_norm(embeddings), self.hidden_norm(hidden)], axis=1))
        x, of_head = self.layer(x, at, LayerMemory(own), mixer)
        return self.norm(x), LayerMemory((*pages, of_head.pages), memory.states)
