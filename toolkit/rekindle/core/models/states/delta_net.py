"""The gated delta net of Qwen3-Next and Qwen3.5."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import DeltaNet, ModelConfig
from rekindle.core.models.config.partition import Order
from rekindle.core.models.layers import Linear, Normalise
from rekindle.core.models.mixing import Mixer, State
from rekindle.core.models.shard import compose, rows_of, spread
from rekindle.core.models.states.parts import Convolution, Decay
from rekindle.core.models.weights.requests import WeightSource
from rekindle_kernels.inputs import Input

_EPS = 1e-6
"""The number added to the square of the length of queries and keys: a constant of the family's code."""


class DeltaNetMixer(nnx.Module, pytree=False):
    """A matrix of each head, updated towards the values of keys (Yang et al., 2024, arXiv:2412.06464)."""

    def __init__(self, config: DeltaNet, model: ModelConfig, weights: WeightSource, prefix: str):
        names, shard = model.names, weights.shard
        heads, keys = shard.heads(config.heads, config.key_heads)
        self.config, self.heads, self.keys = config, len(heads), len(keys)
        order, channel_rows, head_rows, part = None, None, None, None
        of_keys, of_values = config.key_heads * config.key_size, config.heads * config.value_size
        channels = 2 * of_keys + of_values
        if shard.of > 1:
            parts = ((keys, config.key_size, 0), (keys, config.key_size, of_keys))
            channel_rows = rows_of(*parts, (heads, config.value_size, 2 * of_keys))
            gates = (heads, config.value_size, channels), (heads, 1, channels + of_values)
            order = np.concatenate([channel_rows, rows_of(*gates, (heads, 1, channels + of_values + config.heads))])
            head_rows, part = rows_of((heads, 1, 0)), spread(heads, config.value_size)
        if names.state_by_key_head:
            order = compose(grouped_by_key_head(config), order)
        sizes: tuple[int, ...] = (channels, of_values, config.heads, config.heads)
        sizes = (channels + of_values, 2 * config.heads) if len(names.state_in) == 2 else sizes
        projections = {f"{prefix}.{name}": size for name, size in zip(names.state_in, sizes, strict=True)}
        self.project = Linear(weights, model.hidden_size, projections, order=order)
        shape = (channels, config.taps)
        self.convolution = Convolution(weights, f"{prefix}.{names.convolution}", shape, False, channel_rows)
        self.decay = Decay(weights, prefix, config.heads, head_rows)
        size = config.value_size
        self.norm = Normalise(weights, {f"{prefix}.norm": (size,)}, (size,), config.norm)
        self.out = Linear(weights, of_values, {f"{prefix}.{names.state_out}": model.hidden_size}, part=part)

    def __call__(self, x: Input, onto: jax.Array | None, state: State, mixer: Mixer) -> tuple[jax.Array, State]:
        """Map (token, hidden) to (token, hidden), added to `onto`, and return the new state."""
        config, inputs, matrices = self.config, *state
        of_keys, of_values = self.keys * config.key_size, self.heads * config.value_size
        ends = np.cumsum([2 * of_keys + of_values, of_values, self.heads])
        channels, gates, rates, steps = jnp.split(self.project(x), ends, axis=1)
        mixed, inputs = self.convolution(channels, inputs, mixer)
        queries, keys, values = jnp.split(jax.nn.silu(mixed), [of_keys, 2 * of_keys], axis=1)
        q, k = (_unit(each.reshape(-1, self.keys, config.key_size)) for each in (queries, keys))
        v = values.reshape(-1, self.heads, config.value_size)
        decay = self.decay(steps)[1]
        mixed, matrices = mixer.recur(q * config.key_size**-0.5, k, v, decay, jax.nn.sigmoid(rates), matrices)
        mixed = self.norm(mixed).reshape(gates.shape) * jax.nn.silu(gates)
        return self.out(mixed, onto), (inputs, matrices)


def _unit(x: jax.Array) -> jax.Array:
    """Return vectors of length 1 along the last axis."""
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + _EPS)


def grouped_by_key_head(config: DeltaNet) -> Order:
    """Return the stored row of each projected row, if two tensors store the rows of each key head together.

    Rows are those of queries, keys, values and gates, then of rates and steps. The first tensor has the first four of
    each key head in this order, the second has its last two.
    """
    per_key = config.heads // config.key_heads
    ordered = []
    start = 0
    for sizes in ((config.key_size,) * 2 + (per_key * config.value_size,) * 2, (per_key,) * 2):
        stored = start + np.arange(config.key_heads * sum(sizes)).reshape(config.key_heads, -1)
        ordered += [part.reshape(-1) for part in np.split(stored, np.cumsum(sizes)[:-1], axis=1)]
        start += stored.size
    return np.concatenate(ordered)
