"""The gated short convolution of LFM2."""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config import ModelConfig, ShortConvolution
from rekindle.core.models.layers import Linear
from rekindle.core.models.mixing import Mixer, State
from rekindle.core.models.shard import rows_of
from rekindle.core.models.states.parts import Convolution
from rekindle.core.models.weights.requests import WeightSource
from rekindle_kernels.inputs import Input


class ShortConvolutionMixer(nnx.Module, pytree=False):
    """A convolution between two gates, all three projected from a token (Liquid AI, 2025, arXiv:2511.23404)."""

    def __init__(self, config: ShortConvolution, model: ModelConfig, weights: WeightSource, prefix: str):
        names, channels, shard = model.names, config.channels, weights.shard
        own = None if shard.of == 1 else shard.units(channels)
        rows = None if own is None else rows_of(*((own, 1, part * channels) for part in range(3)))
        projections = {f"{prefix}.{name}": 3 * channels for name in names.state_in}
        self.project = Linear(weights, model.hidden_size, projections, config.bias, rows)
        shape, channel_rows = (channels, config.taps), None if own is None else rows_of((own, 1, 0))
        self.convolution = Convolution(weights, f"{prefix}.{names.convolution}", shape, config.bias, channel_rows)
        out = {f"{prefix}.{names.state_out}": model.hidden_size}
        self.out = Linear(weights, channels, out, config.bias, part=own)

    def __call__(self, x: Input, onto: jax.Array | None, state: State, mixer: Mixer) -> tuple[jax.Array, State]:
        """Map (token, hidden) to (token, hidden), added to `onto`, and return the new state."""
        before, after, values = jnp.split(self.project(x), 3, axis=1)
        mixed, inputs = self.convolution(before * values, state[0], mixer)
        return self.out(after * mixed, onto), (inputs,)
