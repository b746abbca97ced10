"""The one decoder of all families, as an nnx module over ragged, flat tokens.

It is the one place that knows what tensors a model has: it asks for them when it is built. Its modules are no pytrees,
because flax would check every attribute of those, which took two thirds of the time of building them; programs take
their state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.attention import Attend, Attention
from rekindle.core.models.config import LayerConfig, ModelConfig
from rekindle.core.models.feed_forward import feed_forward_of
from rekindle.core.models.latent import LatentAttention
from rekindle.core.models.layers import JoinedTensors, Linear, Normalise, Shapes, WeightSource, norm_of
from rekindle.core.models.rope import turns
from rekindle.core.models.shard import TENSOR, WHOLE, Shard, rows_of
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation
from rekindle_kernels.inputs import Input


class Layer(nnx.Module, pytree=False):
    """Attention and a feed-forward layer around the residual stream, with norms where the family has them."""

    def __init__(self, model: ModelConfig, layer: LayerConfig, weights: WeightSource, prefix: str):
        names = model.names

        def norm(name: str | None) -> Normalise | None:
            return None if name is None else norm_of(weights, f"{prefix}.{name}", model.hidden_size, model.norm)

        self.parallel, self.multiplier = model.parallel, model.residual_multiplier
        self.before_attention = norm(names.before_attention)
        latent = model.attention.latent
        self.attention = (
            Attention(model, layer, weights, prefix)
            if latent is None
            else LatentAttention(model, latent, layer, weights, prefix)
        )
        self.after_attention = norm(names.after_attention)
        self.before_mlp = norm(names.before_mlp)
        self.mlp = feed_forward_of(model, layer, weights, prefix)
        self.after_mlp = norm(names.after_mlp)

    def __call__(
        self, x: jax.Array, turned: tuple[jax.Array, jax.Array], pages: jax.Array, attend: Attend
    ) -> tuple[jax.Array, jax.Array]:
        """Map (token, hidden) and this layer's pages to the same."""
        read: Input = x if self.before_attention is None else self.before_attention.input(x)
        mixed, pages = self.attention(read, self._onto(x, self.after_attention), turned, pages, attend)
        stream = self._added(x, mixed, self.after_attention)
        if self.before_mlp is not None:
            read = self.before_mlp.input(x if self.parallel else stream)
        elif not self.parallel:
            read = stream
        return self._added(stream, self.mlp(read, self._onto(stream, self.after_mlp)), self.after_mlp), pages

    def _onto(self, x: jax.Array, after: Normalise | None) -> jax.Array | None:
        """Return what a branch is added to at its last product, if it is added as it is."""
        return x if after is None and self.multiplier == 1 else None

    def _added(self, x: jax.Array, branch: jax.Array, after: Normalise | None) -> jax.Array:
        if self._onto(x, after) is not None:
            return branch
        if after is not None:
            branch = after(branch)
        return x + (branch if self.multiplier == 1 else branch * self.multiplier)


class Decoder(nnx.Module, pytree=False):
    """A decoder-only transformer.

    Layers are attributes `layer_0`, `layer_1`, … rather than a list, which flax versions register differently.
    """

    def __init__(self, config: ModelConfig, weights: WeightSource):
        self.config, self.implementation, self.shard = config, weights.implementation, weights.shard
        hidden, names = config.hidden_size, config.names
        embedding = {f"{names.embedding}.weight": (config.vocab_size, hidden)}
        own = self.shard.units(config.vocab_size)
        self.tokens, rows = len(own), None if self.shard.of == 1 else rows_of((own, 1, 0))
        self.embedding = nnx.Param(weights.get(JoinedTensors(embedding, True, rows)))
        for i, layer in enumerate(config.layers):
            setattr(self, f"layer_{i}", Layer(config, layer, weights, f"{names.layers}.{i}"))
        self.norm = norm_of(weights, names.norm, hidden, config.norm)
        self.head = (
            None if config.tied_embeddings else Linear(weights, hidden, {names.head: config.vocab_size}, order=rows)
        )

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        pages: tuple[jax.Array, ...],
        attend: Attend,
        lengths: jax.Array | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Run the layers.

        Args:
            tokens: (token,) int32 ids, of any number of requests.
            positions: (token,) int32, each token's index in its own request.
            pages: one array a layer, passed to `attend` unchanged.
            attend: writes the keys and values of this call into the pages, and computes attention over them.
            lengths: (token,) int32, of each token's request, for ropes that depend on it. Without them all tokens are
                those of one request.

        Returns:
            (token, hidden) float32, normalised, and the pages.
        """
        config = self.config
        x = self._embedded(tokens)
        if config.embedding_multiplier != 1:
            # In the weights' dtype, as Gemma was trained; other families have numbers that it holds.
            x = x * jnp.asarray(config.embedding_multiplier, self.embedding[...].dtype).astype(jnp.float32)
        ropes = dict.fromkeys(layer.rope for layer in config.layers)
        lengths = jnp.broadcast_to(positions.max() + 1, positions.shape) if lengths is None else lengths
        turned = {rope: turns(rope, positions, lengths, config.attention.turned) for rope in ropes}
        written = []
        for i, (layer, layer_pages) in enumerate(zip(config.layers, pages, strict=True)):
            x, layer_pages = getattr(self, f"layer_{i}")(x, turned[layer.rope], layer_pages, attend)
            written.append(layer_pages)
        return self.norm(x), tuple(written)

    def _embedded(self, tokens: jax.Array) -> jax.Array:
        """Look tokens up, each on the device that has it."""
        table, shape, named = self.embedding[...], (self.tokens, self.config.hidden_size), self.implementation
        if self.shard.of == 1:
            return kernels.look_up(table, tokens, shape, implementation=named)
        places = tokens - jax.lax.axis_index(TENSOR) * self.tokens
        here = (places >= 0) & (places < self.tokens)
        found = kernels.look_up(table, jnp.where(here, places, 0), shape, implementation=named)
        return self.shard.sum(jnp.where(here[:, None], found, 0))

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Map (rows, hidden) to (rows, vocabulary) float32."""
        logits = kernels.linear(self._scaled(hidden), *self._head(), implementation=self.implementation)
        return self._capped(self.shard.joined(logits, 1)[:, : self.config.vocab_size])

    def logits_by_token(self, hidden: jax.Array) -> jax.Array:
        """Map (rows, hidden) to (vocabulary, rows) float32: the same numbers, as sampling reads them."""
        scaled = self._scaled(hidden)
        logits = kernels.linear_columns(scaled, *self._head(), implementation=self.implementation)
        return self._capped(self.shard.joined(logits, 0)[: self.config.vocab_size])

    def _scaled(self, hidden: jax.Array) -> jax.Array:
        multiplier = self.config.logit_multiplier
        return hidden if multiplier == 1 else hidden * multiplier

    def _capped(self, logits: jax.Array) -> jax.Array:
        cap = self.config.logit_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def _head(self) -> tuple[jax.Array, int]:
        weight = self.embedding if self.head is None else self.head.weight
        return weight[...], self.tokens


class _Abstract:
    """A source of shapes and dtypes, which notes what it was asked for and what it gave."""

    def __init__(self, dtype: jnp.dtype, implementation: Implementation, shard: Shard):
        self.implementation, self.shard = implementation, shard
        self.asked: list[JoinedTensors] = []
        self.given: list[jax.ShapeDtypeStruct] = []
        self._dtype = dtype

    def get(self, asked: JoinedTensors) -> Any:
        form = asked.form(self._dtype, self.implementation)
        self.asked.append(asked)
        self.given.append(form)
        return form


@dataclass(frozen=True)
class AbstractDecoder:
    """A decoder without its weights: nothing is read, traced or allocated.

    Attributes:
        graph, structure: of its modules, and of their state.
        requests: what it asks for, in order.
        forms: the form of each weight, in the order in which programs take them.
        places: the place of each weight in `requests`.
    """

    graph: nnx.GraphDef[Decoder]
    structure: jax.tree_util.PyTreeDef
    requests: tuple[JoinedTensors, ...]
    forms: tuple[jax.ShapeDtypeStruct, ...]
    places: tuple[int, ...]

    def with_weights(self, weights: Sequence[jax.Array]) -> Decoder:
        """Return the decoder with weights, in the order in which programs take them."""
        decoder: Decoder = nnx.merge(self.graph, jax.tree.unflatten(self.structure, weights))
        return decoder


@lru_cache(maxsize=4)  # building thirty layers takes flax 50 ms
def abstract_decoder(
    config: ModelConfig, dtype: jnp.dtype, implementation: Implementation, shard: Shard = WHOLE
) -> AbstractDecoder:
    """Build a decoder that has shapes for weights.

    Args:
        dtype: of the weights.
        implementation: of the kernels that read them.
        shard: the share of the device that they are for.
    """
    weights = _Abstract(dtype, implementation, shard)
    graph, state = nnx.split(Decoder(config, weights))
    forms, structure = jax.tree.flatten(state)
    given = {id(form): place for place, form in enumerate(weights.given)}
    places = tuple(given[id(form)] for form in forms)
    return AbstractDecoder(graph, structure, tuple(weights.asked), tuple(forms), places)


@lru_cache(maxsize=4)
def expected_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of every tensor that a model of this config has, by its name in the checkpoint."""
    weights = _Abstract(jnp.dtype(jnp.float32), "xla", WHOLE)
    Decoder(config, weights)
    return MappingProxyType({name: shape for asked in weights.asked for name, shape in asked.shapes.items()})
