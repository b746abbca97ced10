"""The decoder of all families, as an nnx module over ragged, flat tokens.

It alone determines the tensors of a model: its constructor requests each weight. Its modules are not pytrees, because
flax checks every attribute of a pytree, which took two thirds of the construction time. Programs take the modules'
state instead.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.layer_parts import EMBEDDING
from rekindle.core.models.abstract import AbstractModel, abstract_model, requests_of, shapes_of
from rekindle.core.models.config import LearnedPositions, ModelConfig
from rekindle.core.models.layer import layer_of
from rekindle.core.models.layers import Delta, Linear, Table, norm_of
from rekindle.core.models.mixing import LayerMemory, Mixer
from rekindle.core.models.rope import position_key, positions_of
from rekindle.core.models.shard import WHOLE, Shard, rows_of
from rekindle.core.models.taps.tap import LayerTap, Tap
from rekindle.core.models.weights.form import WeightForm
from rekindle.core.models.weights.requests import JoinedTensors, Shapes, WeightSource
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation
from rekindle_kernels.storage import Weight

if TYPE_CHECKING:  # modules of few families are imported where they are built
    from rekindle.core.models.distances import Distances, LinearDistances
    from rekindle.core.models.draft_head import DraftHead
    from rekindle.core.models.streams.altup import Streams
    from rekindle.core.models.streams.features import FeatureTable


class Pictures(Protocol):
    """Interface of the embeddings of images among the tokens of a decoder, (token, hidden) float32."""

    @property
    def rows(self) -> jax.Array:
        """The row of each token of an image in a buffer, -1 for other tokens, (token,) int32."""

    def put_into(self, x: jax.Array) -> jax.Array:
        """Return embeddings with those of images in the places of image tokens."""

    def add_to(self, x: jax.Array, layer: int) -> jax.Array:
        """Return the residual stream after a layer with the sums for image tokens, if the layer is one with sums."""


class Decoder(nnx.Module, pytree=False):
    """A decoder-only transformer.

    Layers are attributes `layer_0`, `layer_1`, … rather than a list: versions of flax register lists differently.
    """

    def __init__(self, config: ModelConfig, weights: WeightSource):
        self.config, self.implementation, self.shard = config, weights.implementation, weights.shard
        hidden, names = config.hidden_size, config.names
        size = hidden if config.embedding_size is None else config.embedding_size
        self.embedding = Table(weights, names.embedding, (config.vocab_size, size))
        is_projected = config.embedding_size is not None
        inner = {names.embedding_in: hidden}
        self.embedding_in = Linear(weights, size, inner, config.embedding_bias) if is_projected else None
        is_projected &= config.predicts
        self.embedding_out = Linear(weights, hidden, {names.embedding_out: size}) if is_projected else None
        positions, norm = config.positions, config.embedding_norm
        width = hidden if norm is None else size
        self.positions = None if positions is None else Table(weights, names.positions, (positions.rows, width))
        types = config.token_types
        self.token_types = Table(weights, names.token_types, (types, width)) if types else None
        self.embedding_norm = None if norm is None else norm_of(weights, names.embedding_norm, width, norm)
        self.distances = _distances_of(config, weights)
        self.features = _features_of(config, weights)
        self.streams = _streams_of(config, weights)
        for i, layer in enumerate(config.layers):
            setattr(self, f"layer_{i}", layer_of(config, layer, weights, f"{names.layers}.{i}"))
        self.norm = None if names.norm is None else norm_of(weights, names.norm, hidden, config.norm)
        rows = None if self.shard.of == 1 else rows_of((self.shard.units(config.vocab_size), 1, 0))
        is_tied = config.tied_embeddings or not config.predicts
        self.head = None if is_tied else Linear(weights, size, {names.head: config.vocab_size}, order=rows)
        bias = JoinedTensors({f"{names.head}.bias": (config.vocab_size,)}, False)
        self.head_bias = nnx.Param(weights.get(bias)) if config.head_bias else None
        self.draft_head = _draft_head_of(config, weights)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        memory: LayerMemory,
        mixer: Mixer,
        lengths: jax.Array | None = None,
        tap: Tap | None = None,
        pictures: Pictures | None = None,
    ) -> tuple[jax.Array, LayerMemory]:
        """Run the layers.

        Args:
            tokens: (token,) int32 ids, of any number of requests.
            positions: (token,) int32, each token's position in its request; or its coordinates, (3, token) int32, for
                ropes with `axes`.
            memory: the pages and states of all layers, passed to the mixer layer by layer.
            mixer: the attention over pages, and the recurrences and convolutions over states.
            lengths: (token,) int32, the length of each token's request, for long-context ropes. None stands for tokens
                of a single request.
            tap: reads or changes activations between the layers' parts, of a model with one residual stream.
            pictures: the embeddings of images among the tokens; None without images.

        Returns:
            (token, hidden) float32, normalised, and the memory.
        """
        config = self.config
        lengths = jnp.broadcast_to(positions.max() + 1, tokens.shape) if lengths is None else lengths
        x = self._embed(tokens, positions)
        x = x if pictures is None else pictures.put_into(x)
        if config.features is not None and pictures is not None:
            tokens = jnp.where(pictures.rows >= 0, config.features.of_images, tokens)
        features = None if self.features is None else self.features(tokens, x)
        keys = dict.fromkeys(position_key(attention) for attention in config.attentions)
        positions_by_key = {key: positions_of(key, positions, lengths) for key in keys}
        if self.distances is not None:
            bias = self.distances()
            positions_by_key = {key: each._replace(bias=bias) for key, each in positions_by_key.items()}
        assert tap is None or self.streams is None, "a tap is for one residual stream"
        x = x if self.streams is None else self.streams.spread(x)
        # A compiler fuses the multiplication of embeddings with the first sum. A tap would round between the two.
        if tap is not None and (tap.reads_branches or config.embedding_multiplier == 1):
            x = tap.change(EMBEDDING, "residual", None, x)
        pages, states = list(memory.pages), list(memory.states)
        for i, (layer, page, state) in enumerate(
            zip(config.layers, config.page_places, config.state_places, strict=True)
        ):
            at = None if layer.attention is None else positions_by_key[position_key(layer.attention)]
            own = LayerMemory(None if page is None else pages[page], None if state is None else states[state])
            of_layer = None if features is None else features[:, i]
            of_tap = None if tap is None else LayerTap(tap, i)
            x, own = getattr(self, f"layer_{i}")(x, at, own, mixer, of_layer, of_tap)
            x = x if pictures is None else pictures.add_to(x, i)
            x = x if tap is None else tap.change(i, "residual", None, x)
            if page is not None:
                pages[page] = own.pages
            if state is not None:
                states[state] = own.states
        x = x if self.streams is None else self.streams.merge(x)
        return x if self.norm is None else self.norm(x), LayerMemory(tuple(pages), tuple(states))

    def draft(
        self,
        following: jax.Array,
        positions: jax.Array,
        hidden: jax.Array,
        memory: LayerMemory,
        mixer: Mixer,
        lengths: jax.Array,
    ) -> tuple[jax.Array, LayerMemory]:
        """Run the draft head after the layers, on the same tokens.

        Args:
            following: (token,) int32, the token after each token.
            positions, mixer, lengths: see `__call__`.
            hidden, memory: the results of `__call__`.

        Returns:
            (token, hidden) float32, for the logits of the token after `following`, and the memory.
        """
        assert self.draft_head is not None, "a draft of a model without a draft head"
        return self.draft_head(self._embed(following, positions), positions, hidden, memory, mixer, lengths)

    def _embed(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """Return the embeddings of tokens at these positions, (token, hidden) float32."""
        config, types = self.config, jnp.zeros_like(tokens)
        if config.token_types:
            types, tokens = jnp.clip(tokens // config.vocab_size, 0, config.token_types - 1), tokens % config.vocab_size
        x = self.embedding(tokens)
        if config.embedding_multiplier != 1:
            dtype = self.embedding.dtype if config.rounded_embedding else jnp.float32
            x = x * jnp.asarray(config.embedding_multiplier, dtype).astype(jnp.float32)
        x = x if self.embedding_norm is not None or self.embedding_in is None else self.embedding_in(x)
        if self.token_types is not None:
            x = x + self.token_types(types)
        if config.positions is not None and self.positions is not None:
            x = x + self.positions(_rows_of(config.positions, tokens, positions))
        if self.embedding_norm is None:
            return x
        x = self.embedding_norm(x)
        return x if self.embedding_in is None else self.embedding_in(x)

    def logits(self, hidden: jax.Array, delta: Delta | None = None) -> jax.Array:
        """Map (rows, hidden) to (rows, vocabulary) float32; zeros without an output projection.

        Args:
            delta: adds a summand to the head's product on this device, such as that of adapters.
        """
        if not self.config.predicts:
            return jnp.zeros((len(hidden), self.config.vocab_size), jnp.float32)
        scaled = self._scale(hidden)
        logits = kernels.linear(scaled, *self._head(), implementation=self.implementation)
        logits = logits if delta is None else delta(scaled, logits)
        logits = self.shard.gather(logits, 1)[:, : self.config.vocab_size]
        return self._cap(logits if self.head_bias is None else logits + self.head_bias[...][None])

    def logits_by_token(self, hidden: jax.Array, delta: Delta | None = None) -> jax.Array:
        """Map (rows, hidden) to (vocabulary, rows) float32: transposed `logits`, for sampling."""
        if not self.config.predicts:
            return jnp.zeros((self.config.vocab_size, len(hidden)), jnp.float32)
        scaled = self._scale(hidden)
        logits = kernels.linear_columns(scaled, *self._head(), implementation=self.implementation)
        logits = logits if delta is None else delta(scaled, logits.T).T
        logits = self.shard.gather(logits, 0)[: self.config.vocab_size]
        return self._cap(logits if self.head_bias is None else logits + self.head_bias[...][:, None])

    def _scale(self, hidden: jax.Array) -> jax.Array:
        hidden, multiplier = self._projected(hidden), self.config.logit_multiplier
        return hidden if multiplier == 1 else hidden * multiplier

    def _projected(self, hidden: jax.Array) -> jax.Array:
        return hidden if self.embedding_out is None else self.embedding_out(hidden)

    def _cap(self, logits: jax.Array) -> jax.Array:
        cap = self.config.logit_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def _head(self) -> tuple[Weight, int]:
        weight = self.embedding.weight if self.head is None else self.head.weight
        return weight(), self.embedding.rows


def _distances_of(config: ModelConfig, weights: WeightSource) -> "Distances | LinearDistances | None":
    if config.distances is None:
        return None
    from rekindle.core.models.distances import distances_of

    return distances_of(config.distances, config, weights)


def _features_of(config: ModelConfig, weights: WeightSource) -> "FeatureTable | None":
    if config.features is None:
        return None
    from rekindle.core.models.streams.features import FeatureTable

    return FeatureTable(config.features, config, weights)


def _streams_of(config: ModelConfig, weights: WeightSource) -> "Streams | None":
    if config.streams is None:
        return None
    from rekindle.core.models.streams.altup import Streams

    return Streams(config.streams, config, weights)


def _draft_head_of(config: ModelConfig, weights: WeightSource) -> "DraftHead | None":
    if config.draft_head is None:
        return None
    from rekindle.core.models.draft_head import DraftHead

    return DraftHead(config, config.draft_head, weights)


def _rows_of(learned: LearnedPositions, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    """Return the rows of learned positions, (token,) int32. Surplus tokens have any row, since they are dropped."""
    rows = positions + learned.offset
    if learned.skipped is not None:
        is_counted = tokens != learned.skipped
        counts = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(is_counted, dtype=jnp.int32)])
        first = jnp.maximum(jnp.arange(len(tokens), dtype=jnp.int32) - positions, 0)
        before = counts[1:] - counts[first] - is_counted.astype(jnp.int32)
        rows = learned.offset + jnp.where(is_counted, before, -1)
    return jnp.clip(rows, 0, learned.rows - 1)


AbstractDecoder = AbstractModel[Decoder]
"""A decoder without weights."""


@lru_cache(maxsize=4)  # building thirty layers takes flax 50 ms
def abstract_decoder(
    config: ModelConfig, form: WeightForm, implementation: Implementation, shard: Shard = WHOLE
) -> AbstractDecoder:
    """Build a decoder with shapes in place of weights; see `abstract_model`."""
    return abstract_model(partial(Decoder, config), form, implementation, shard)


@lru_cache(maxsize=4)
def expected_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of every tensor of a model with this config, by its name in the checkpoint."""
    return shapes_of(_plain_requests(config))


def transposed_names(config: ModelConfig) -> frozenset[str]:
    """Return the names of the matrices stored as (in, out) in a checkpoint."""
    return frozenset(name for request in _plain_requests(config) if request.transposed for name in request.shapes)


@lru_cache(maxsize=4)
def _plain_requests(config: ModelConfig) -> Sequence[JoinedTensors]:
    return requests_of(partial(Decoder, config))
