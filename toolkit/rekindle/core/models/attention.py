"""Attention of a layer, independent of the computation over pages."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import AttentionConfig, HeadNorm, LayerConfig, ModelConfig
from rekindle.core.models.layers import JoinedTensors, Linear, Normalise, WeightSource, halves_first
from rekindle.core.models.shard import HeadShares, Order, compose, rows_of, spread
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Input


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """A layer's options for attention scores, as arguments of `rekindle_kernels.api.attend_rows`."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: jax.Array | None = None

    def options(self) -> dict[str, Any]:
        """Return the options by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


Attend = Callable[[jax.Array, jax.Array, jax.Array, ScoreOptions], tuple[jax.Array, jax.Array]]
"""`(q, kv, pages, scores) -> (output, pages)` of one layer. Queries and output are (token, heads, head_dim). `kv` are
the keys and values to write into the pages, (token, sides, kv_heads, head_dim); a single side is both."""


class Attention(nnx.Module, pytree=False):
    """Grouped-query self-attention (Ainslie et al., 2023, arXiv:2305.13245) with rotary positions."""

    def __init__(self, model: ModelConfig, layer: LayerConfig, weights: WeightSource, prefix: str):
        config, names, shard = model.attention, model.names, weights.shard
        queries, keys = shard.heads(config.heads, config.kv_heads)
        self.heads, self.kv_heads = len(queries), len(keys)
        self.config, self.scores = config, ScoreOptions(config.scale, layer.window, config.soft_cap)
        heads, order = (config.heads, config.kv_heads, config.kv_heads), None
        if layer.rope is not None and layer.rope.interleaved:
            order = halves_first(heads, config.head_dim, layer.rope.dims or config.head_dim)
        head_order = order
        starts = np.cumsum([0, *heads]) * config.head_dim
        rows = rows_of(
            *((units, config.head_dim, at) for units, at in zip((queries, keys, keys), starts, strict=False))
        )
        order = compose(order, None if shard.of == 1 else rows)
        sizes = [each * config.head_dim for each in heads]
        sizes = sizes if len(names.qkv) == len(sizes) else [sum(sizes)]
        projections = {f"{prefix}.{name}": size for name, size in zip(names.qkv, sizes, strict=True)}
        self.qkv = Linear(weights, model.hidden_size, projections, config.qkv_bias, order)
        part = None if shard.of == 1 else spread(queries, config.head_dim)
        mixed = {f"{prefix}.{names.out}": model.hidden_size}
        self.out = Linear(weights, config.heads * config.head_dim, mixed, config.out_bias, part=part)
        norm_order = None if head_order is None else head_order[: config.head_dim]
        self.q_norm = _head_norm(weights, f"{prefix}.{names.q_norm}", 0, config, norm_order)
        self.k_norm = _head_norm(weights, f"{prefix}.{names.k_norm}", 1, config, norm_order)
        sinks = JoinedTensors({f"{prefix}.{names.sinks}": (config.heads,)}, False, rows_of((queries, 1, 0)))
        self.sinks = nnx.Param(weights.get(sinks)) if config.sinks else None

    def __call__(
        self,
        x: Input,
        onto: jax.Array | None,
        cos_sin: tuple[jax.Array, jax.Array],
        pages: jax.Array,
        attend: Attend,
    ) -> tuple[jax.Array, jax.Array]:
        """Compute attention of (token, hidden), added to `onto`, and write the tokens into this layer's pages.

        Args:
            cos_sin: the cosines and sines of the positions, (token, pairs) each.
        """
        config, norm = self.config, self.config.head_norm
        qkv = self.qkv(x).reshape(-1, self.heads + 2 * self.kv_heads, config.head_dim)
        if norm is not None and not norm.after_rope:
            q, k, v = jnp.split(qkv, [self.heads, self.heads + self.kv_heads], axis=1)
            qkv = jnp.concatenate([*self._normalise(norm, q, k), v], axis=1)
        q, kv = kernels.rotate(qkv, *cos_sin, self.kv_heads, implementation=self.out.implementation)
        if norm is not None and norm.after_rope:
            q, k = self._normalise(norm, q, kv[:, 0])
            kv = jnp.stack([k, kv[:, 1]], axis=1)
        scores = self.scores if self.sinks is None else replace(self.scores, sinks=self.sinks[...])
        mixed, pages = attend(q, kv, pages, scores)
        return self.out(mixed.reshape(len(mixed), -1), onto), pages

    def _normalise(self, norm: HeadNorm, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        assert self.q_norm is not None
        assert self.k_norm is not None
        if norm.over == "all":
            flat = self.q_norm(q.reshape(len(q), -1)), self.k_norm(k.reshape(len(k), -1))
            return flat[0].reshape(q.shape), flat[1].reshape(k.shape)
        return self.q_norm(q), self.k_norm(k)


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
