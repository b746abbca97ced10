"""Parts of mixers with a state: a convolution of each channel, and the decay of each head."""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config.partition import Order
from rekindle.core.models.mixing import Mixer
from rekindle.core.models.shard import spread
from rekindle.core.models.weights.requests import JoinedTensors, WeightSource


def vector(weights: WeightSource, name: str, shape: tuple[int, ...], order: Order | None) -> nnx.Param[jax.Array]:
    """Return a tensor as (elements,) float32; see `JoinedTensors` for `order`."""
    return nnx.Param(weights.get(JoinedTensors({name: shape}, False, order)))


class Convolution(nnx.Module, pytree=False):
    """A causal convolution of each channel with its latest inputs.

    Args:
        weights: the source of the tensors.
        name: the name of the convolution.
        shape: (channels, taps).
        bias: whether each channel has a bias.
        own: the indices of this device's channels; None for all.
    """

    def __init__(self, weights: WeightSource, name: str, shape: tuple[int, int], bias: bool, own: Order | None):
        channels, self.taps = shape
        order = None if own is None else spread(own, self.taps)
        self.weight = vector(weights, f"{name}.weight", (channels, 1, self.taps), order)
        self.bias = vector(weights, f"{name}.bias", (channels,), own) if bias else None

    def __call__(self, x: jax.Array, state: jax.Array, mixer: Mixer) -> tuple[jax.Array, jax.Array]:
        """Convolve (token, channels), and return the state with the latest inputs; see `Mixer.convolve`."""
        bias = None if self.bias is None else self.bias[...]
        return mixer.convolve(x, self.weight[...].reshape(-1, self.taps), bias, state)


class Decay(nnx.Module, pytree=False):
    """The decay of each head by a step, which depends on the token (Gu and Dao, 2023, arXiv:2312.00752).

    Args:
        weights: the source of the tensors.
        prefix: the prefix of their names.
        heads: the number of heads.
        own: the indices of this device's heads; None for all.
        steps: the smallest and the largest step; None for any.
    """

    def __init__(
        self,
        weights: WeightSource,
        prefix: str,
        heads: int,
        own: Order | None,
        steps: tuple[float, float] | None = None,
    ):
        self.rates = vector(weights, f"{prefix}.A_log", (heads,), own)
        self.bias = vector(weights, f"{prefix}.dt_bias", (heads,), own)
        self.steps = steps

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the steps of (token, heads), and the logarithms of the factors of states, both (token, heads)."""
        steps = jax.nn.softplus(x + self.bias[...][None])
        steps = steps if self.steps is None else jnp.clip(steps, *self.steps)
        return steps, -jnp.exp(self.rates[...])[None] * steps
