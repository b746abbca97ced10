"""Latent attention: pages hold one latent and one key with a position for each token, whatever the number of heads."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.attention import Attend, ScoreOptions
from rekindle.core.models.config import LatentConfig, LayerConfig, ModelConfig
from rekindle.core.models.layers import JoinedTensors, Linear, WeightSource, halves_first, norm_of
from rekindle.core.models.rope import turn
from rekindle.core.models.shard import Order, composed, rows_of, spread
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Input


class LatentAttention(nnx.Module, pytree=False):
    """Multi-head latent attention (DeepSeek-AI, 2024, arXiv:2405.04434), section 2.1.

    Heads never make keys and values of the latents. Their queries are multiplied by what would make keys, and what is
    made of the latents' mean is their values' mean. So the latents themselves are the keys and the values.
    """

    def __init__(
        self, model: ModelConfig, config: LatentConfig, layer: LayerConfig, weights: WeightSource, prefix: str
    ):
        names, hidden, heads, shard = model.names, model.hidden_size, model.attention.heads, weights.shard
        own = shard.units(heads)
        there = np.maximum(own, 0)
        self.config, self.heads, self.scores = config, len(own), ScoreOptions(model.attention.scale, layer.window)
        wide, key = config.plain + config.turned, config.rank + config.turned
        neighbours = layer.rope is not None and layer.rope.neighbours
        order = _turned_last(heads, config.plain, config.turned) if neighbours else None
        key_order = _turned_last(1, config.rank, config.turned) if neighbours else None
        rank = config.query_rank
        self.q_latent = (
            None if rank is None else Linear(weights, hidden, {f"{prefix}.{names.q_latent}": rank}, config.bias)
        )
        self.q_norm = None if rank is None else norm_of(weights, f"{prefix}.{names.q_latent_norm}", rank, config.norm)
        name, inputs = (names.q, hidden) if rank is None else (names.q_heads, rank)
        order = composed(order, None if shard.of == 1 else rows_of((own, wide, 0)))
        self.q = Linear(weights, inputs, {f"{prefix}.{name}": heads * wide}, order=order)
        self.latent = Linear(weights, hidden, {f"{prefix}.{names.latent}": key}, config.bias, key_order)
        self.latent_norm = norm_of(weights, f"{prefix}.{names.latent_norm}", config.rank, config.norm)
        made = {f"{prefix}.{names.latent_heads}.weight": (heads * (config.plain + config.value), config.rank)}
        keys = JoinedTensors(made, True, groups=heads, turned=True, inputs=np.arange(config.plain), members=there)
        self.keys = nnx.Param(weights.get(keys))
        of_values = np.arange(config.plain, config.plain + config.value)
        self.values = nnx.Param(weights.get(JoinedTensors(made, True, of_values, groups=heads, members=there)))
        part = None if shard.of == 1 else spread(own, config.value)
        self.out = Linear(weights, heads * config.value, {f"{prefix}.{names.out}": hidden}, config.bias, part=part)

    def __call__(
        self,
        x: Input,
        onto: jax.Array | None,
        turns: tuple[jax.Array, jax.Array],
        pages: jax.Array,
        attend: Attend,
    ) -> tuple[jax.Array, jax.Array]:
        """Map (token, hidden) to the same, added to `onto`, and this layer's pages to those that also hold x.

        Args:
            turns: the cosines and sines of the positions, (token, pairs).
        """
        config, x = self.config, kernels.computed(x, implementation=self.out.implementation)
        q = self.q(x if self.q_latent is None or self.q_norm is None else self.q_norm.input(self.q_latent(x)))
        plain, turned = jnp.split(q.reshape(len(x), self.heads, -1), [config.plain], axis=-1)
        latent, key = jnp.split(self.latent(x), [config.rank], axis=-1)
        q = jnp.concatenate([self._of_heads(plain, self.keys[...], config.rank), turn(turned, *turns)], axis=-1)
        kept = jnp.concatenate([self.latent_norm(latent), turn(key[:, None], *turns)[:, 0]], axis=-1)
        mixed, pages = attend(q, kept[:, None, None], pages, self.scores)
        values = self._of_heads(mixed[..., : config.rank], self.values[...], config.value)
        return self.out(values.reshape(len(x), -1), onto), pages

    def _of_heads(self, x: jax.Array, weight: jax.Array, outputs: int) -> jax.Array:
        """Map (token, heads, in) to (token, heads, outputs) by each head's own matrix."""
        rows = x.swapaxes(0, 1).reshape(-1, x.shape[-1])
        y = kernels.grouped_linear(rows, None, weight, outputs, implementation=self.out.implementation)
        return y.reshape(self.heads, -1, outputs).swapaxes(0, 1)


def _turned_last(heads: int, plain: int, turned: int) -> Order:
    """Return the order of heads whose last numbers turn, and are neighbours in a checkpoint; see `halves_first`."""
    head = np.concatenate([np.arange(plain), plain + halves_first([1], turned, turned)])
    order: Order = (np.arange(heads)[:, None] * (plain + turned) + head[None]).reshape(-1)
    return order
