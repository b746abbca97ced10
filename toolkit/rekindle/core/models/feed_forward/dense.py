"""Dense feed-forward layers."""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config import FeedForwardConfig, ModelConfig
from rekindle.core.models.layers import XIELU_NUMBERS, ClippedLinear, Linear, activate, xielu
from rekindle.core.models.shard import TENSOR, Shard, rows_of
from rekindle.core.models.weights.requests import JoinedTensors, WeightSource
from rekindle_kernels.inputs import Input


class FeedForward(nnx.Module, pytree=False):
    """Two products with an activation between them.

    Args:
        config: the sizes and the activation.
        hidden: the number of features of a token.
        weights: the source of the tensors.
        gate_up, down: the names of the projections.
        transposed: whether the projections are stored as (in, out).
        activation: the name of the activation, if it has learned numbers.
        clipped: see `Names`.
    """

    def __init__(
        self,
        config: FeedForwardConfig,
        hidden: int,
        weights: WeightSource,
        gate_up: tuple[str, ...],
        down: str,
        transposed: bool = False,
        activation: str = "",
        clipped: bool = False,
    ):
        halves, shard = 2 if config.gated else 1, weights.shard
        names = dict.fromkeys(gate_up, config.width * halves // len(gate_up))
        self.config, self.shard = config, shard
        own = shard.units(config.width)
        rows = rows_of(*((own, 1, half * config.width) for half in range(halves)))
        order, part = (None, None) if shard.of == 1 else (rows, own)
        self.gate_up: Linear | ClippedLinear
        self.down: Linear | ClippedLinear
        if clipped:
            self.gate_up = ClippedLinear(weights, hidden, names)
            self.down = ClippedLinear(weights, config.width, {down: hidden})
        else:
            self.gate_up = Linear(weights, hidden, names, config.bias, order, transposed=transposed)
            bias = config.bias or config.out_bias
            self.down = Linear(weights, config.width, {down: hidden}, bias, part=part, transposed=transposed)
        numbers = JoinedTensors({f"{activation}.{name}": shape for name, shape in XIELU_NUMBERS.items()}, False)
        self.numbers = nnx.Param(weights.get(numbers)) if config.activation == "xielu" else None

    def __call__(self, x: Input, onto: jax.Array | None) -> jax.Array:
        """Map (token, hidden) to (token, hidden), added to `onto`."""
        if self.config.multiplier == 1:
            return self.down(self._inner(x), onto)
        y = self.down(self._inner(x)) * self.config.multiplier
        return y if onto is None else onto + y

    def product(self, x: Input) -> jax.Array:
        """Return this device's summand of the result, without the last bias."""
        return self.down.product(self._inner(x))

    def _inner(self, x: Input) -> Input:
        inner = self.gate_up(x)
        if self.numbers is not None:
            return xielu(inner, *self.numbers[...])
        if self.config.cutoff is not None:
            gate, up = jnp.split(inner, 2, axis=1)
            gate = excess(gate, self.config.cutoff, self.config.width, self.shard)
            inner = jnp.concatenate([gate, up], axis=1)
        return activate(inner, self.config)


def excess(x: jax.Array, cutoff: float, width: int, shard: Shard) -> jax.Array:
    """Return the excess of features over a bound, and 0 below it (Gemma 3n's sparse activations).

    Args:
        x: (token, features), this device's features.
        cutoff: the bound, in standard deviations above the mean of a token's features.
        width: the number of features of all devices, without padding.
        shard: the device's shard.
    """
    count, first = x.shape[1], 0 if shard.of == 1 else jax.lax.axis_index(TENSOR) * x.shape[1]
    real = (first + jnp.arange(count) < width)[None]
    mean = shard.sum(jnp.where(real, x, 0).sum(1, keepdims=True)) / width
    variance = shard.sum(jnp.where(real, jnp.square(x - mean), 0).sum(1, keepdims=True)) / width
    return jax.nn.relu(x - (mean + cutoff * jnp.sqrt(variance)))


def dense_of(config: FeedForwardConfig, model: ModelConfig, weights: WeightSource, prefix: str) -> FeedForward:
    """Return the dense layer of a decoder layer, from tensors with this name prefix."""
    names = model.names
    gate_up = tuple(f"{prefix}.{name}" for name in names.gate_up)
    down, activation = f"{prefix}.{names.down}", f"{prefix}.{names.activation}"
    return FeedForward(config, model.hidden_size, weights, gate_up, down, names.transposed, activation, names.clipped)
