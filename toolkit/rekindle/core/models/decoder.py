"""The decoder of all families, as an nnx module over ragged, flat tokens.

It alone determines the tensors of a model: its constructor requests each weight. Its modules are not pytrees, because
flax checks every attribute of a pytree, which took two thirds of the construction time. Programs take the modules'
state instead.
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
from rekindle.core.models.rope import compute_cos_sin
from rekindle.core.models.shard import TENSOR, WHOLE, Shard, rows_of
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation
from rekindle_kernels.inputs import Input


class Layer(nnx.Module, pytree=False):
    """Attention and a feed-forward layer around the residual stream, with the norms of the family."""

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
        self, x: jax.Array, cos_sin: tuple[jax.Array, jax.Array], pages: jax.Array, attend: Attend
    ) -> tuple[jax.Array, jax.Array]:
        """Map (token, hidden) and this layer's pages to their new values."""
        inputs: Input = x if self.before_attention is None else self.before_attention.input(x)
        mixed, pages = self.attention(inputs, self._onto(x, self.after_attention), cos_sin, pages, attend)
        stream = self._add(x, mixed, self.after_attention)
        if self.before_mlp is not None:
            inputs = self.before_mlp.input(x if self.parallel else stream)
        elif not self.parallel:
            inputs = stream
        return self._add(stream, self.mlp(inputs, self._onto(stream, self.after_mlp)), self.after_mlp), pages

    def _onto(self, x: jax.Array, after: Normalise | None) -> jax.Array | None:
        """Return `x` if a branch's last product may add to it directly, else None."""
        return x if after is None and self.multiplier == 1 else None

    def _add(self, x: jax.Array, branch: jax.Array, after: Normalise | None) -> jax.Array:
        if self._onto(x, after) is not None:
            return branch
        if after is not None:
            branch = after(branch)
        return x + (branch if self.multiplier == 1 else branch * self.multiplier)


class Decoder(nnx.Module, pytree=False):
    """A decoder-only transformer.

    Layers are attributes `layer_0`, `layer_1`, … rather than a list: versions of flax register lists differently.
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
            positions: (token,) int32, each token's index in its request.
            pages: one array per layer, passed to `attend` unchanged.
            attend: the function to write this call's keys and values into the pages, and to compute attention.
            lengths: (token,) int32, the length of each token's request, for long-context ropes. None stands for tokens
                of a single request.

        Returns:
            (token, hidden) float32, normalised, and the pages.
        """
        config = self.config
        x = self._embed(tokens)
        if config.embedding_multiplier != 1:
            # Rounded to the weights' dtype, as in Gemma's training; exact for the multipliers of other families.
            x = x * jnp.asarray(config.embedding_multiplier, self.embedding[...].dtype).astype(jnp.float32)
        ropes = dict.fromkeys(layer.rope for layer in config.layers)
        lengths = jnp.broadcast_to(positions.max() + 1, positions.shape) if lengths is None else lengths
        cos_sin = {rope: compute_cos_sin(rope, positions, lengths, config.attention.rotary_dims) for rope in ropes}
        new_pages = []
        for i, (layer, layer_pages) in enumerate(zip(config.layers, pages, strict=True)):
            x, layer_pages = getattr(self, f"layer_{i}")(x, cos_sin[layer.rope], layer_pages, attend)
            new_pages.append(layer_pages)
        return self.norm(x), tuple(new_pages)

    def _embed(self, tokens: jax.Array) -> jax.Array:
        """Look up token embeddings, each on the device with its row."""
        table, shape, implementation = self.embedding[...], (self.tokens, self.config.hidden_size), self.implementation
        if self.shard.of == 1:
            return kernels.look_up(table, tokens, shape, implementation=implementation)
        rows = tokens - jax.lax.axis_index(TENSOR) * self.tokens
        is_local = (rows >= 0) & (rows < self.tokens)
        embeddings = kernels.look_up(table, jnp.where(is_local, rows, 0), shape, implementation=implementation)
        return self.shard.sum(jnp.where(is_local[:, None], embeddings, 0))

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Map (rows, hidden) to (rows, vocabulary) float32."""
        logits = kernels.linear(self._scale(hidden), *self._head(), implementation=self.implementation)
        return self._cap(self.shard.gather(logits, 1)[:, : self.config.vocab_size])

    def logits_by_token(self, hidden: jax.Array) -> jax.Array:
        """Map (rows, hidden) to (vocabulary, rows) float32: transposed `logits`, for sampling."""
        scaled = self._scale(hidden)
        logits = kernels.linear_columns(scaled, *self._head(), implementation=self.implementation)
        return self._cap(self.shard.gather(logits, 0)[: self.config.vocab_size])

    def _scale(self, hidden: jax.Array) -> jax.Array:
        multiplier = self.config.logit_multiplier
        return hidden if multiplier == 1 else hidden * multiplier

    def _cap(self, logits: jax.Array) -> jax.Array:
        cap = self.config.logit_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def _head(self) -> tuple[jax.Array, int]:
        weight = self.embedding if self.head is None else self.head.weight
        return weight[...], self.tokens


class _Abstract:
    """Weight source of shapes and dtypes alone, with a record of requests and results."""

    def __init__(self, dtype: jnp.dtype, implementation: Implementation, shard: Shard):
        self.implementation, self.shard = implementation, shard
        self.requests: list[JoinedTensors] = []
        self.forms: list[jax.ShapeDtypeStruct] = []
        self._dtype = dtype

    def get(self, request: JoinedTensors) -> Any:
        form = request.form(self._dtype, self.implementation)
        self.requests.append(request)
        self.forms.append(form)
        return form


@dataclass(frozen=True)
class AbstractDecoder:
    """A decoder without weights: nothing is read, traced or allocated.

    Attributes:
        graph, structure: the graph of the modules, and the tree structure of their state.
        requests: the requests for weights, in order of construction.
        forms: the shape and dtype of each weight, in the programs' order.
        places: the index of each weight in `requests`, in the programs' order.
    """

    graph: nnx.GraphDef[Decoder]
    structure: jax.tree_util.PyTreeDef
    requests: tuple[JoinedTensors, ...]
    forms: tuple[jax.ShapeDtypeStruct, ...]
    places: tuple[int, ...]

    def with_weights(self, weights: Sequence[jax.Array]) -> Decoder:
        """Return the decoder with weights in the programs' order."""
        decoder: Decoder = nnx.merge(self.graph, jax.tree.unflatten(self.structure, weights))
        return decoder


@lru_cache(maxsize=4)  # building thirty layers takes flax 50 ms
def abstract_decoder(
    config: ModelConfig, dtype: jnp.dtype, implementation: Implementation, shard: Shard = WHOLE
) -> AbstractDecoder:
    """Build a decoder with shapes in place of weights.

    Args:
        dtype: the dtype of the weights.
        implementation: the kernel implementation for the weights.
        shard: the device's shard of the model.
    """
    weights = _Abstract(dtype, implementation, shard)
    graph, state = nnx.split(Decoder(config, weights))
    forms, structure = jax.tree.flatten(state)
    index_of = {id(form): index for index, form in enumerate(weights.forms)}
    places = tuple(index_of[id(form)] for form in forms)
    return AbstractDecoder(graph, structure, tuple(weights.requests), tuple(forms), places)


@lru_cache(maxsize=4)
def expected_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of every tensor of a model with this config, by its name in the checkpoint."""
    weights = _Abstract(jnp.dtype(jnp.float32), "xla", WHOLE)
    Decoder(config, weights)
    return MappingProxyType({name: shape for request in weights.requests for name, shape in request.shapes.items()})
