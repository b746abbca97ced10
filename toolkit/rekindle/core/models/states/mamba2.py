"""The mixer of Mamba-2."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import Mamba2, ModelConfig
from rekindle.core.models.layers import Linear
from rekindle.core.models.mixing import Mixer, State
from rekindle.core.models.shard import rows_of, spread
from rekindle.core.models.states.group_norm import GroupNorm
from rekindle.core.models.states.parts import Convolution, Decay, vector
from rekindle.core.models.weights.requests import WeightSource
from rekindle_kernels.inputs import Input


class Mamba2Mixer(nnx.Module, pytree=False):
    """A matrix of each head, decayed and added to by each token (Dao and Gu, 2024, arXiv:2405.21060)."""

    def __init__(self, config: Mamba2, model: ModelConfig, weights: WeightSource, prefix: str):
        names, shard = model.names, weights.shard
        heads, groups = shard.heads(config.heads, config.groups)
        self.config, self.heads, self.groups = config, len(heads), len(groups)
        order, channel_rows, head_rows, part = None, None, None, None
        values, keys = config.heads * config.head_size, config.groups * config.state_size
        channels = values + 2 * keys
        if shard.of > 1:
            starts = (values, values + keys)
            of_keys = ((groups, config.state_size, start) for start in starts)
            channel_rows = rows_of((heads, config.head_size, 0), *of_keys)
            gates = rows_of((heads, config.head_size, 0))
            order = np.concatenate([gates, values + channel_rows, rows_of((heads, 1, values + channels))])
            head_rows, part = rows_of((heads, 1, 0)), spread(heads, config.head_size)
        projections = {f"{prefix}.{name}": values + channels + config.heads for name in names.state_in}
        self.project = Linear(weights, model.hidden_size, projections, config.bias, order)
        shape = (channels, config.taps)
        name = f"{prefix}.{names.convolution}"
        self.convolution = Convolution(weights, name, shape, config.convolution_bias, channel_rows)
        self.decay = Decay(weights, prefix, config.heads, head_rows, config.steps)
        self.skip = vector(weights, f"{prefix}.D", (config.heads,), head_rows)
        self.norm = None if config.norm is None else GroupNorm(config, config.norm, weights, f"{prefix}.norm")
        out = {f"{prefix}.{names.state_out}": model.hidden_size}
        self.out = Linear(weights, values, out, config.out_bias, part=part)

    def __call__(self, x: Input, onto: jax.Array | None, state: State, mixer: Mixer) -> tuple[jax.Array, State]:
        """Map (token, hidden) to (token, hidden), added to `onto`, and return the new state."""
        config, inputs, matrices = self.config, *state
        values, keys = self.heads * config.head_size, self.groups * config.state_size
        projected = self.project(x)
        if config.multipliers:
            factors = np.repeat(np.array(config.multipliers, np.float32), [values, values, keys, keys, self.heads])
            projected = projected * factors[None]
        gates, channels, steps = jnp.split(projected, [values, 2 * values + 2 * keys], axis=1)
        mixed, inputs = self.convolution(channels, inputs, mixer)
        of_heads, of_keys, of_queries = jnp.split(jax.nn.silu(mixed), [values, values + keys], axis=1)
        v = of_heads.reshape(-1, self.heads, config.head_size)
        k, q = (each.reshape(-1, self.groups, config.state_size) for each in (of_keys, of_queries))
        steps, decay = self.decay(steps)
        mixed, matrices = mixer.recur(q, k, v * steps[:, :, None], decay, None, matrices)
        mixed = (mixed + v * self.skip[...][None, :, None]).reshape(gates.shape)
        mixed = self._gated(mixed, jax.nn.silu(gates))
        mixed = mixed if config.multiplier == 1 else mixed * config.multiplier
        return self.out(mixed, onto), (inputs, matrices)

    def _gated(self, x: jax.Array, gates: jax.Array) -> jax.Array:
        if self.norm is None:
            return x * gates
        return self.norm(x * gates) if self.config.gate_first else self.norm(x) * gates
