"""The draft head of a model: one more layer, which guesses the token after the next one.

It is the first module of multi-token prediction (DeepSeek-AI, 2024, arXiv:2412.19437, section 2.2), with the embedding
and the output projection of the model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config import LayerConfig, ModelConfig
from rekindle.core.models.layer import layer_of
from rekindle.core.models.layers import Linear, norm_of
from rekindle.core.models.mixing import LayerMemory, Mixer
from rekindle.core.models.rope import position_key, positions_of
from rekindle.core.models.weights.requests import WeightSource


class DraftHead(nnx.Module, pytree=False):
    """A layer over the hidden state of each token and the embedding of the token after it.

    Its tensors are in the checkpoint as those of a layer after the last one.
    """

    def __init__(self, model: ModelConfig, layer: LayerConfig, weights: WeightSource):
        assert layer.attention is not None, "a draft head without attention"
        prefix, hidden = f"{model.names.layers}.{model.num_layers}", model.hidden_size
        self.position_key = position_key(layer.attention)
        self.embedding_norm = norm_of(weights, f"{prefix}.enorm", hidden, model.norm)
        self.hidden_norm = norm_of(weights, f"{prefix}.hnorm", hidden, model.norm)
        self.join = Linear(weights, 2 * hidden, {f"{prefix}.eh_proj": hidden})
        self.layer = layer_of(model, layer, weights, prefix)
        self.norm = norm_of(weights, f"{prefix}.shared_head.norm", hidden, model.norm)

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
