"""Attention of a layer, independent of the computation over pages."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import AttentionConfig, HeadNorm, LayerConfig, ModelConfig, Names
from rekindle.core.models.config.partition import Order
from rekindle.core.models.layers import ClippedLinear, Linear, Normalise, halves_first
from rekindle.core.models.mixing import Mixer, ScoreOptions
from rekindle.core.models.rope import Positions, rotate_start
from rekindle.core.models.shard import HeadShares, compose, rows_of, spread
from rekindle.core.models.weights.requests import JoinedTensors, WeightSource
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Input


class Attention(nnx.Module, pytree=False):
    """Grouped-query self-attention (Ainslie et al., 2023, arXiv:2305.13245) with rotary positions.

    Attributes:
        heads, kv_heads: the number of query heads and of KV heads on this device.
        sides: the number of projected sides: 2 for keys and values, 1 for keys, 0 for a layer that reads the pages of
            another one.
    """

    def __init__(
        self, model: ModelConfig, config: AttentionConfig, layer: LayerConfig, weights: WeightSource, prefix: str
    ):
        names, shard = model.names, weights.shard
        queries, keys = shard.heads(config.heads, config.kv_heads)
        self.heads, self.kv_heads = len(queries), len(keys)
        self.sides = 0 if layer.pages_of is not None else 1 if config.values_are_keys else 2
        self.config = config
        self.scores = ScoreOptions(config.scale, config.window, config.soft_cap, chunk=config.chunk, ahead=config.ahead)
        self.qkv = _inputs(model, config, self.sides, weights, prefix)
        part = None if shard.of == 1 else spread(queries, config.head_dim)
        mixed = {f"{prefix}.{names.out}": model.hidden_size}
        size = config.heads * config.head_dim
        self.out: Linear | ClippedLinear
        if names.clipped:
            self.out = ClippedLinear(weights, size, mixed)
        else:
            self.out = Linear(weights, size, mixed, config.out_bias, part=part, transposed=names.transposed)
        norm_order = _pair_order(config, [1])
        self.q_norm = _head_norm(weights, f"{prefix}.{names.q_norm}", 0, config, norm_order)
        self.k_norm = _head_norm(weights, f"{prefix}.{names.k_norm}", 1, config, norm_order) if self.sides else None
        norm = config.value_norm
        self.v_norm = None if norm is None or not self.sides else Normalise(weights, {}, (config.head_dim,), norm)
        sinks = JoinedTensors({f"{prefix}.{names.sinks}": (config.heads,)}, False, rows_of((queries, 1, 0)))
        self.sinks = nnx.Param(weights.get(sinks)) if config.sinks else None

    def __call__(
        self, x: Input, onto: jax.Array | None, positions: Positions, pages: jax.Array, mixer: Mixer
    ) -> tuple[jax.Array, jax.Array]:
        """Compute attention of (token, hidden), added to `onto`, and write the tokens into this layer's pages."""
        count = self.heads + self.sides * self.kv_heads
        is_gated = self.config.output_gate
        qkv = self.qkv(x).reshape(-1, count + self.heads * is_gated, self.config.head_dim)
        qkv, gates = (qkv[:, :count], qkv[:, count:]) if is_gated else (qkv, None)
        q, kv = self._entries(qkv, positions) if self.sides else (self._queries(qkv, positions), None)
        if positions.growth is not None:
            q = q * positions.growth[:, None, None]
        scores = self.scores if self.sinks is None else replace(self.scores, sinks=self.sinks[...])
        scores = scores if positions.bias is None else replace(scores, bias=positions.bias)
        mixed, pages = mixer.attend(q, kv, pages, scores)
        mixed = mixed if gates is None else mixed * jax.nn.sigmoid(gates)
        mixed = mixed if self.config.multiplier == 1 else mixed * self.config.multiplier
        return self.out(mixed.reshape(len(mixed), -1), onto), pages

    def _entries(self, qkv: jax.Array, positions: Positions) -> tuple[jax.Array, jax.Array]:
        """Return queries (token, heads, head_dim), and keys and values (token, 2, kv_heads, head_dim)."""
        norm, angles = self.config.head_norm, (positions.cos, positions.sin)
        if self.sides == 1:
            qkv = jnp.concatenate([qkv, qkv[:, self.heads :]], axis=1)
        before = norm is not None and not norm.after_rope
        if before or self.v_norm is not None:
            q, k, v = jnp.split(qkv, [self.heads, self.heads + self.kv_heads], axis=1)
            q, k = self._normalise(norm, q, k) if norm is not None and before else (q, k)
            qkv = jnp.concatenate([q, k, v if self.v_norm is None else self.v_norm(v)], axis=1)
        if self.config.clip is not None:
            qkv = jnp.clip(qkv, -self.config.clip, self.config.clip)
        q, kv = kernels.rotate(qkv, *angles, self.kv_heads, implementation=self.out.implementation)
        if norm is not None and norm.after_rope:
            q, k = self._normalise(norm, q, kv[:, 0])
            kv = jnp.stack([k, kv[:, 1]], axis=1)
        return q, kv

    def _queries(self, q: jax.Array, positions: Positions) -> jax.Array:
        """Return the queries alone, for keys and values of another layer."""
        norm = self.config.head_norm
        if norm is not None and not norm.after_rope:
            q = self._normalise_side(self.q_norm, norm, q)
        q = q if self.config.clip is None else jnp.clip(q, -self.config.clip, self.config.clip)
        q = rotate_start(q, positions.cos, positions.sin)
        return self._normalise_side(self.q_norm, norm, q) if norm is not None and norm.after_rope else q

    def _normalise(self, norm: HeadNorm, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._normalise_side(self.q_norm, norm, q), self._normalise_side(self.k_norm, norm, k)

    def _normalise_side(self, module: Normalise | None, norm: HeadNorm, x: jax.Array) -> jax.Array:
        assert module is not None
        return module(x.reshape(len(x), -1)).reshape(x.shape) if norm.over == "all" else module(x)


def _inputs(
    model: ModelConfig, config: AttentionConfig, sides: int, weights: WeightSource, prefix: str
) -> Linear | ClippedLinear:
    """Return the joined projections to queries, keys, values and gates, in this order; see `Attention` for `sides`."""
    names, shard = model.names, weights.shard
    queries, keys = shard.heads(config.heads, config.kv_heads)
    has_side = [side < sides for side in range(2)]
    heads = [config.heads, *(config.kv_heads * each for each in has_side), config.heads * config.output_gate]
    order = _pair_order(config, heads)
    if shard.of > 1:
        own = (queries, *(keys[: len(keys) * each] for each in has_side), queries[: len(queries) * config.output_gate])
        starts = np.cumsum([0, *heads[:-1]]) * config.head_dim
        rows = rows_of(*((each, config.head_dim, int(at)) for each, at in zip(own, starts, strict=True)))
        order = compose(order, rows)
    if names.qkv_by_head:
        order = compose(_grouped_by_head(config), order)
    if config.output_gate and names.gated_queries:
        order = compose(_gates_last(heads, config.head_dim), order)
    projections = _projections(names, prefix, [each * config.head_dim for each in heads])
    if names.clipped:
        return ClippedLinear(weights, model.hidden_size, projections, order)
    return Linear(weights, model.hidden_size, projections, config.qkv_bias, order, transposed=names.transposed)


def _pair_order(config: AttentionConfig, heads: list[int]) -> Order | None:
    """Return the row order of heads with half-split rotary pairs; see `halves_first`. None for no change."""
    rope = config.rope
    if rope is None or not (rope.interleaved or rope.parts > 1):
        return None
    return halves_first(heads, config.head_dim, rope.dims or config.head_dim, 0 if rope.interleaved else rope.parts)


def _projections(names: Names, prefix: str, sizes: list[int]) -> dict[str, int]:
    """Return the outputs of each stored tensor by name, for the outputs of queries, keys, values and gates."""
    queries, keys, values, gates = sizes
    if names.gated_queries:
        queries, gates = queries + gates, 0
    stored = dict(zip(names.qkv, (queries, keys, values), strict=False))
    if len(names.qkv) == 1:
        stored = {names.qkv[0]: queries + keys + values}
    return {f"{prefix}.{name}": size for name, size in (stored | {names.gate: gates}).items() if size}


def _gates_last(heads: list[int], head_dim: int) -> Order:
    """Return the stored row of each row of queries, keys, values and gates, if gates follow each head's query."""
    pairs = np.arange(2 * heads[0]).reshape(-1, 2)
    units = np.concatenate([pairs[:, 0], np.arange(2 * heads[0], sum(heads)), pairs[:, 1]])
    return spread(units, head_dim)


def _grouped_by_head(config: AttentionConfig) -> Order:
    """Return the stored row of each row of queries, keys and values, if they are stored by KV head."""
    group = config.heads // config.kv_heads
    stored = np.arange(config.heads + 2 * config.kv_heads).reshape(config.kv_heads, group + 2)
    heads = np.concatenate([stored[:, :group].reshape(-1), stored[:, group], stored[:, group + 1]])
    rows: Order = (heads[:, None] * config.head_dim + np.arange(config.head_dim)[None]).reshape(-1)
    return rows


def _head_norm(
    weights: WeightSource, name: str, side: int, config: AttentionConfig, order: Order | None
) -> Normalise | None:
    """Return the normalisation of query heads (side 0) or key heads (side 1), or None.

    Its weights may be one tensor or one tensor per head.
    """
    if config.head_norm is None:
        return None
    head_dim, over, norm, shard = config.head_dim, config.head_norm.over, config.head_norm.norm, weights.shard
    if over == "head":
        return Normalise(weights, {name: (head_dim,)}, (head_dim,), norm, order)
    both = config.heads, config.kv_heads
    heads, own = both[side], shard.heads(*both)[side]
    every = None if order is None else (np.arange(heads)[:, None] * head_dim + order[None]).reshape(-1)
    every = compose(every, None if shard.of == 1 else rows_of((own, head_dim, 0)))
    if over == "all":
        shares = None if shard.of == 1 else HeadShares(shard.of, *both, side, head_dim)
        return Normalise(weights, {name: (heads * head_dim,)}, (len(own) * head_dim,), norm, every, shares)
    shapes: dict[str, tuple[int, ...]] = {name: (heads, head_dim)}
    if "{head}" in name:
        shapes = {name.format(head=head): (head_dim,) for head in range(heads)}
    return Normalise(weights, shapes, (len(own), head_dim), norm, every)
