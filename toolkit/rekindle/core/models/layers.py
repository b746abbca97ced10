"""Building blocks of a decoder: linear maps, tables, norms, activation functions. Values are (token, ...) float32."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import Activation, FeedForwardConfig, Norm
from rekindle.core.models.config.partition import Order
from rekindle.core.models.shard import TENSOR, WHOLE, HeadShares, rows_of
from rekindle.core.models.weights.requests import JoinedTensors, Matrix, Shapes, WeightSource
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Gated, Input, Normed

Delta = Callable[[jax.Array, jax.Array], jax.Array]
"""A summand of a product: maps its input (rows, in), and the product (rows, out), to their sum."""
BOUNDS: Final = ("input_min", "input_max", "output_min", "output_max")
"""Names of the bounds of a product, in place of the last part of its name, "linear"."""


class Linear(nnx.Module, pytree=False):
    """Linear map `x @ weight.T + bias` with float32 sums; projections of one input are joined into one product.

    Args:
        weights: the source of the tensors.
        inputs: the number of input features.
        outputs: the number of output features of each projection, by its name in the checkpoint.
        bias: whether each projection adds a bias.
        order: see `JoinedTensors`.
        part: the indices of this device's inputs, -1 for padding, if products are summed over devices; None for all
            inputs on each device.
        transposed: whether the only projection is stored as (in, out).

    Attributes:
        weight: (out, in).
        bias: (out,) float32, or None.
        delta: adds a summand to the product, such as that of adapters; None for none.
    """

    delta: Delta | None = None

    def __init__(
        self,
        weights: WeightSource,
        inputs: int,
        outputs: Mapping[str, int],
        bias: bool = False,
        order: Order | None = None,
        part: Order | None = None,
        transposed: bool = False,
    ):
        self.outputs = sum(outputs.values()) if order is None else len(order)
        self.implementation, self.shard = weights.implementation, WHOLE if part is None else weights.shard
        shapes = {name: (inputs, size) if transposed else (size, inputs) for name, size in outputs.items()}
        matrices = JoinedTensors(
            {f"{name}.weight": shape for name, shape in shapes.items()},
            True,
            order,
            transposed=transposed,
            inputs=part,
        )
        self.weight = Matrix(weights, matrices)
        biases = {f"{name}.bias": (size,) for name, size in outputs.items()}
        self.bias = nnx.Param(weights.get(JoinedTensors(biases, False, order))) if bias else None

    def __call__(self, x: Input, onto: jax.Array | None = None) -> jax.Array:
        """Map (tokens, in) float32 to (tokens, out) float32, added to `onto`, the residual stream for example."""
        if self.shard.of == 1:
            y = self._product(x, onto)
        else:
            y = self.shard.sum(self.product(x))
            y = y if onto is None else onto + y
        return y if self.bias is None else y + self.bias[...][None]

    def product(self, x: Input) -> jax.Array:
        """Return this device's summand of the product, without the bias."""
        return self._product(x, None)

    def _product(self, x: Input, onto: jax.Array | None) -> jax.Array:
        if self.delta is None:
            return kernels.linear(x, self.weight(), self.outputs, implementation=self.implementation, onto=onto)
        x = kernels.materialize(x, implementation=self.implementation)
        y = kernels.linear(x, self.weight(), self.outputs, implementation=self.implementation, onto=onto)
        return self.delta(x, y)


class ClippedLinear(nnx.Module, pytree=False):
    """Linear maps of one input, each with bounds of its own for the input and the output.

    Args:
        weights: the source of the tensors.
        inputs: the number of input features.
        outputs: the number of output features of each projection, by its name in the checkpoint.
        order: the stored row of each row; no row leaves its projection. None for the stored order.

    Attributes:
        implementation: the kernel implementation.
    """

    def __init__(self, weights: WeightSource, inputs: int, outputs: Mapping[str, int], order: Order | None = None):
        self.implementation, self.count = weights.implementation, len(outputs)
        ranges = pairwise(accumulate(outputs.values(), initial=0))
        for i, ((name, size), (first, end)) in enumerate(zip(outputs.items(), ranges, strict=True)):
            own = None if order is None else order[first:end] - first
            setattr(self, f"part_{i}", Linear(weights, inputs, {name: size}, order=own))
            stem = name.removesuffix(".linear")
            bounds = JoinedTensors({f"{stem}.{bound}": () for bound in BOUNDS}, False)
            setattr(self, f"bounds_{i}", nnx.Param(weights.get(bounds)))

    def __call__(self, x: Input, onto: jax.Array | None = None) -> jax.Array:
        """Map (tokens, in) float32 to (tokens, out) float32, added to `onto`."""
        x = kernels.materialize(x, implementation=self.implementation)
        y = jnp.concatenate([self._product(i, x) for i in range(self.count)], axis=1)
        return y if onto is None else onto + y

    def product(self, x: Input) -> jax.Array:
        """Return the result without a summand."""
        return self(x)

    def _product(self, i: int, x: jax.Array) -> jax.Array:
        low, high, least, most = getattr(self, f"bounds_{i}")[...]
        result: jax.Array = jnp.clip(getattr(self, f"part_{i}")(jnp.clip(x, low, high)), least, most)
        return result


class Table(nnx.Module, pytree=False):
    """A table with one row per token, each row on one device.

    Args:
        weights: the source of the tensors.
        name: the name of the table.
        shape: (rows, features).

    Attributes:
        weight: the rows of this device.
        rows: the number of rows on each device.
        dtype: the dtype of the rows, unless they are packed.
    """

    def __init__(self, weights: WeightSource, name: str, shape: tuple[int, int]):
        self.features, self.implementation, self.shard = shape[1], weights.implementation, weights.shard
        own = self.shard.units(shape[0])
        self.rows, order = len(own), None if self.shard.of == 1 else rows_of((own, 1, 0))
        self.weight = Matrix(weights, JoinedTensors({f"{name}.weight": shape}, True, order))
        self.dtype = weights.form.dtype

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the rows of (token,) int32, (token, features) float32."""
        table, shape = self.weight(), (self.rows, self.features)
        if self.shard.of == 1:
            return kernels.look_up(table, tokens, shape, implementation=self.implementation)
        rows = tokens - jax.lax.axis_index(TENSOR) * self.rows
        is_local = (rows >= 0) & (rows < self.rows)
        values = kernels.look_up(table, jnp.where(is_local, rows, 0), shape, implementation=self.implementation)
        return self.shard.sum(jnp.where(is_local[:, None], values, 0))


class Normalise(nnx.Module, pytree=False):
    """Normalisation over the last axis.

    Args:
        weights: the source of the tensors.
        shapes: the shapes of the weight tensors, by name without ".weight"; biases have the same shapes.
        shape: the shape of the joined weights, (..., features); leading axes match the last axes of the input.
        config: the kind of normalisation.
        order: see `JoinedTensors`.
        shares: the weights of each device's features in a mean over devices; None if each device has all features.
    """

    def __init__(
        self,
        weights: WeightSource,
        shapes: Shapes,
        shape: tuple[int, ...],
        config: Norm,
        order: Order | None = None,
        shares: HeadShares | None = None,
    ):
        scales = {f"{name}.weight": each for name, each in shapes.items()}
        scale = JoinedTensors(scales, False, order, config.offset)
        self.weight = nnx.Param(weights.get(scale)) if config.weighted else None
        biases = {f"{name}.bias": each for name, each in shapes.items()}
        self.bias = nnx.Param(weights.get(JoinedTensors(biases, False, order))) if config.bias else None
        self.shape, self.config, self.implementation = shape, config, weights.implementation
        self.shares, self.shard = shares, weights.shard

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (..., features) float32."""
        return kernels.materialize(self.input(x), implementation=self.implementation)

    def input(self, x: jax.Array) -> Input:
        """Return the normalised (..., features) as an input of a linear layer, possibly not computed yet."""
        weight, bias, config = self.weight, self.bias, self.config
        if self.shares is not None:
            y = self._over_devices(x, self.shares)
        elif len(self.shape) == 1 and (bias is None or config.centred):
            scale = jnp.ones(self.shape, jnp.float32) if weight is None else weight[...]
            return Normed(x, scale, config.eps, config.centred, None if bias is None else bias[...])
        else:
            # XLA sums a row in an order of its own for each number of rows; the native kernel has one order.
            ones = jnp.ones(x.shape[-1], jnp.float32)
            plain = Normed(x, ones, config.eps, config.centred)
            y = kernels.materialize(plain, implementation=self.implementation)
        axes = (1,) * (x.ndim - len(self.shape))
        y = y if weight is None else y * weight[...].reshape(*axes, *self.shape)
        return y if bias is None else y + bias[...].reshape(*axes, *self.shape)

    def _over_devices(self, x: jax.Array, shares: HeadShares) -> jax.Array:
        """Normalise over the features of all devices, without weights."""

        def mean(x: jax.Array) -> jax.Array:
            return self.shard.sum((x * shares.local()[None]).sum(-1, keepdims=True))

        if self.config.centred:
            x = x - mean(x)
        return x * jax.lax.rsqrt(mean(jnp.square(x)) + self.config.eps)


def norm_of(weights: WeightSource, name: str, features: int, config: Norm) -> Normalise:
    """Return a normalisation over all features of a token, with a single weight tensor."""
    return Normalise(weights, {name: (features,)}, (features,), config)


_GELU_TANH: Final = np.float32(2 * math.sqrt(2 / math.pi))
"""GELU by tanh (Hendrycks and Gimpel, 2016, arXiv:1606.08415) as a sigmoid, which loses no digits far below 0."""
ACTIVATIONS: Final[dict[Activation, Callable[[jax.Array], jax.Array]]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: x * jax.nn.sigmoid(_GELU_TANH * (x + 0.044715 * x**3)),
    "gelu_quick": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
}
"""Activations without learned numbers."""


def activate(x: jax.Array, config: FeedForwardConfig) -> Input:
    """Apply an activation. If it is gated, apply it to the first half of the features, and multiply by the second.

    Returns:
        (tokens, features), as an input of a linear layer, possibly not computed yet.
    """
    if not config.gated:
        return ACTIVATIONS[config.activation](x)
    is_plain = config.limit is None and not config.offset and config.gate_multiplier == 1
    if config.activation == "silu" and is_plain:
        return Gated(x)
    first, second = jnp.split(x, 2, axis=1)
    first = first if config.gate_multiplier == 1 else first * config.gate_multiplier
    if config.limit is not None:
        first, second = jnp.minimum(first, config.limit), jnp.clip(second, -config.limit, config.limit)
    if config.offset:
        second += config.offset
    return ACTIVATIONS[config.activation](first) * second


XIELU_NUMBERS: Final[Mapping[str, tuple[int, ...]]] = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}
"""The shapes of a layer's learned numbers of xIELU, by name."""


def xielu(x: jax.Array, above: jax.Array, below: jax.Array, slope: jax.Array, eps: jax.Array) -> jax.Array:
    """Apply xIELU (Huang and Schlag, 2024, arXiv:2411.13010), which grows quadratically above 0.

    Args:
        x: (token, features).
        above, below: the curvatures on both sides of 0, before a softplus.
        slope: the slope at 0.
        eps: a negative number, the largest argument of the exponential.
    """
    above, below = jax.nn.softplus(above), slope + jax.nn.softplus(below)
    return jnp.where(x > 0, above * x * x, (jnp.expm1(jnp.minimum(x, eps)) - x) * below) + slope * x


def halves_first(heads: Sequence[int], head_dim: int, dims: int, parts: int = 0) -> Order:
    """Return the row order to change interleaved rotary pairs (2i, 2i + 1) into half-split ones (i, i + dims / 2).

    Scores do not change, since queries and keys have the same order.

    Args:
        heads: the number of heads of queries, keys, values and gates; the order of the last two does not change.
        head_dim: the size of a head.
        dims: the size of a head's rotary part, at its start.
        parts: the number of equal parts with pairs of their own halves, in place of interleaved pairs; 0 for these.
    """
    head = np.arange(head_dim)
    pairs = head[:dims].reshape(parts, 2, -1).swapaxes(0, 1) if parts else head[:dims].reshape(-1, 2).T
    head[:dims] = pairs.reshape(-1)
    rotary_heads, all_heads = sum(heads[:2]), sum(heads)
    rows = np.arange(all_heads * head_dim).reshape(all_heads, head_dim)
    rows[:rotary_heads] = rows[:rotary_heads, head]
    return rows.reshape(-1)
