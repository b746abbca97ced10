"""Latent attention: pages hold one latent and one rotary key per token, shared by all heads."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import AttentionConfig, LatentConfig, ModelConfig
from rekindle.core.models.config.partition import Order
from rekindle.core.models.layers import Linear, halves_first, norm_of
from rekindle.core.models.mixing import Mixer, ScoreOptions
from rekindle.core.models.rope import Positions, rotate
from rekindle.core.models.shard import compose, rows_of, spread
from rekindle.core.models.weights.requests import JoinedTensors, Matrix, WeightSource
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Input
from rekindle_kernels.storage import Weight


class LatentAttention(nnx.Module, pytree=False):
    """Multi-head latent attention (DeepSeek-AI, 2024, arXiv:2405.04434), section 2.1.

    Keys and values per head are never computed. Each head's queries are multiplied by its key matrix instead, and the
    weighted mean of latents by its value matrix. So the latents themselves are the keys and the values.
    """

    def __init__(
        self, model: ModelConfig, attention: AttentionConfig, config: LatentConfig, weights: WeightSource, prefix: str
    ):
        names, hidden, heads, shard = model.names, model.hidden_size, attention.heads, weights.shard
        own = shard.units(heads)
        members = np.maximum(own, 0)
        self.config, self.heads, self.scores = config, len(own), ScoreOptions(attention.scale, attention.window)
        wide, key = config.plain + config.rotary, config.rank + config.rotary
        interleaved = attention.rope is not None and attention.rope.interleaved
        order = _rotary_order(heads, config.plain, config.rotary) if interleaved else None
        key_order = _rotary_order(1, config.rank, config.rotary) if interleaved else None
        rank = config.query_rank
        self.q_latent = (
            None if rank is None else Linear(weights, hidden, {f"{prefix}.{names.q_latent}": rank}, config.bias)
        )
        self.q_norm = None if rank is None else norm_of(weights, f"{prefix}.{names.q_latent_norm}", rank, config.norm)
        name, inputs = (names.q, hidden) if rank is None else (names.q_heads, rank)
        order = compose(order, None if shard.of == 1 else rows_of((own, wide, 0)))
        self.q = Linear(weights, inputs, {f"{prefix}.{name}": heads * wide}, order=order)
        self.latent = Linear(weights, hidden, {f"{prefix}.{names.latent}": key}, config.bias, key_order)
        self.latent_norm = norm_of(weights, f"{prefix}.{names.latent_norm}", config.rank, config.norm)
        shapes = {f"{prefix}.{names.latent_heads}.weight": (heads * (config.plain + config.value), config.rank)}
        keys = JoinedTensors(
            shapes, True, groups=heads, transposed=True, inputs=np.arange(config.plain), members=members
        )
        self.keys = Matrix(weights, keys)
        value_rows = np.arange(config.plain, config.plain + config.value)
        self.values = Matrix(weights, JoinedTensors(shapes, True, value_rows, groups=heads, members=members))
        part = None if shard.of == 1 else spread(own, config.value)
        self.out = Linear(weights, heads * config.value, {f"{prefix}.{names.out}": hidden}, config.bias, part=part)

    def __call__(
        self, x: Input, onto: jax.Array | None, positions: Positions, pages: jax.Array, mixer: Mixer
    ) -> tuple[jax.Array, jax.Array]:
        """Compute attention of (token, hidden), added to `onto`, and write the tokens into this layer's pages."""
        cos_sin = positions.cos, positions.sin
        config, x = self.config, kernels.materialize(x, implementation=self.out.implementation)
        q = self.q(x if self.q_latent is None or self.q_norm is None else self.q_norm.input(self.q_latent(x)))
        plain, rotary = jnp.split(q.reshape(len(x), self.heads, -1), [config.plain], axis=-1)
        latent, key = jnp.split(self.latent(x), [config.rank], axis=-1)
        q = jnp.concatenate([self._per_head(plain, self.keys(), config.rank), rotate(rotary, *cos_sin)], axis=-1)
        q = q if positions.growth is None else q * positions.growth[:, None, None]
        entry = jnp.concatenate([self.latent_norm(latent), rotate(key[:, None], *cos_sin)[:, 0]], axis=-1)
        mixed, pages = mixer.attend(q, entry[:, None, None], pages, self.scores)
        values = self._per_head(mixed[..., : config.rank], self.values(), config.value)
        return self.out(values.reshape(len(x), -1), onto), pages

    def _per_head(self, x: jax.Array, weight: Weight, outputs: int) -> jax.Array:
        """Map (token, heads, in) to (token, heads, outputs) by one matrix per head."""
        rows = x.swapaxes(0, 1).reshape(-1, x.shape[-1])
        y = kernels.grouped_linear(rows, None, weight, outputs, implementation=self.out.implementation)
        return y.reshape(self.heads, -1, outputs).swapaxes(0, 1)


def _rotary_order(heads: int, plain: int, rotary: int) -> Order:
    """Return the order of heads with their rotary part last, interleaved in the checkpoint; see `halves_first`."""
    head = np.concatenate([np.arange(plain), plain + halves_first([1], rotary, rotary)])
    order: Order = (np.arange(heads)[:, None] * (plain + rotary) + head[None]).reshape(-1)
    return order
