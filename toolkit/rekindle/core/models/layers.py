"""The pieces of a decoder: linear maps, normalisations, activations. What flows is float32, (token, ...)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import Activation, FeedForwardConfig, Norm
from rekindle.core.models.shard import WHOLE, HeadShares, Order, Shard
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation
from rekindle_kernels.inputs import Gated, Input, Normed

Shapes = Mapping[str, tuple[int, ...]]
"""Tensors of a checkpoint by their names, with the shape that each must have."""


@dataclass(frozen=True)
class JoinedTensors:
    """The tensors that a decoder asks for at a time, joined along their first axis.

    Attributes:
        shapes: of the tensors.
        matrix: whether they are matrices (out, in), which the kernels read; else they are joined as float32 numbers.
        order: where each row, or number, of the result is among the joined ones; None for the same order.
        offset: added to the numbers of vectors.
        groups: how many matrices of one shape the joined ones are cut into; 0 for one that is not cut. The rows of an
            order are those of each.
        turned: whether each matrix is (in, out) instead; there is only one tensor then.
        inputs: which of the inputs remain; None for all, and -1 for zeros.
        members: which of the groups remain; None for all.
    """

    shapes: Shapes
    matrix: bool
    order: Order | None = None
    offset: float = 0.0
    groups: int = 0
    turned: bool = False
    inputs: Order | None = None
    members: Order | None = None

    def form(self, dtype: jnp.dtype, implementation: Implementation) -> jax.ShapeDtypeStruct:
        """Return the form of the result: groups lie along a first axis of their own."""
        shapes = list(self.shapes.values())
        if not self.matrix:
            count = sum(math.prod(shape) for shape in shapes) if self.order is None else len(self.order)
            return jax.ShapeDtypeStruct((count,), jnp.float32)
        rows, inputs = sum(math.prod(shape[:-1]) for shape in shapes) // max(1, self.groups), shapes[0][-1]
        outputs, inputs = (inputs, rows) if self.turned else (rows, inputs)
        outputs = outputs if self.order is None else len(self.order)
        inputs = inputs if self.inputs is None else len(self.inputs)
        one = kernels.packed((outputs, inputs), dtype, implementation=implementation)
        groups = self.groups if self.members is None else len(self.members)
        return jax.ShapeDtypeStruct((groups, *one.shape), one.dtype) if self.groups else one


class WeightSource(Protocol):
    """The source of the tensors of a decoder that is being built. What it gives may be only shapes and dtypes.

    Attributes:
        implementation: of the kernels that read the matrices.
        shard: the share of the device that the tensors are for.
    """

    implementation: Implementation
    shard: Shard

    def get(self, asked: JoinedTensors) -> jax.Array:
        """Return matrices as `kernels.packed` says, and vectors as (numbers,) float32."""


class Linear(nnx.Module, pytree=False):
    """`x @ weight.T + bias` with float32 sums; projections of the same input are joined into one product.

    Args:
        weights: where the tensors come from.
        inputs: features of the input.
        outputs: features of each projection's output, by the projection's name in the checkpoint.
        bias: whether each projection adds a bias.
        order: see `JoinedTensors`.
        part: which of the inputs this device has, -1 for none, so that products are summed over devices; None for all.

    Attributes:
        weight: (out, in), float32 or bfloat16, in the form that the kernels read.
        bias: (out,) float32, or None.
    """

    def __init__(
        self,
        weights: WeightSource,
        inputs: int,
        outputs: Mapping[str, int],
        bias: bool = False,
        order: Order | None = None,
        part: Order | None = None,
    ):
        self.outputs = sum(outputs.values()) if order is None else len(order)
        self.implementation, self.shard = weights.implementation, WHOLE if part is None else weights.shard
        matrices = {f"{name}.weight": (size, inputs) for name, size in outputs.items()}
        self.weight = nnx.Param(weights.get(JoinedTensors(matrices, True, order, inputs=part)))
        biases = {f"{name}.bias": (size,) for name, size in outputs.items()}
        self.bias = nnx.Param(weights.get(JoinedTensors(biases, False, order))) if bias else None

    def __call__(self, x: Input, onto: jax.Array | None = None) -> jax.Array:
        """Map (tokens, in) float32 to (tokens, out) float32, added to `onto`, such as the residual stream."""
        if self.shard.of == 1:
            y = kernels.linear(x, self.weight[...], self.outputs, implementation=self.implementation, onto=onto)
        else:
            y = self.shard.sum(self.product(x))
            y = y if onto is None else onto + y
        return y if self.bias is None else y + self.bias[...][None]

    def product(self, x: Input) -> jax.Array:
        """Return this device's share of the product, without the bias."""
        return kernels.linear(x, self.weight[...], self.outputs, implementation=self.implementation)


class Normalise(nnx.Module, pytree=False):
    """A normalisation over the last axis.

    Args:
        weights: where the tensors come from.
        shapes: of the tensors of its weights by their names, without ".weight"; those of biases are the same.
        shape: of the weights, (..., features); the axes before the features are those of what is normalised.
        config: which one.
        order: see `JoinedTensors`.
        shares: the share that the features of each device have in a mean, if they are shared out.
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
        named = {f"{name}.weight": each for name, each in shapes.items()}
        self.weight = nnx.Param(weights.get(JoinedTensors(named, False, order, config.offset)))
        named = {f"{name}.bias": each for name, each in shapes.items()}
        self.bias = nnx.Param(weights.get(JoinedTensors(named, False, order))) if config.bias else None
        self.shape, self.config, self.implementation = shape, config, weights.implementation
        self.shares, self.shard = shares, weights.shard

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (..., features) float32."""
        return kernels.computed(self.input(x), implementation=self.implementation)

    def input(self, x: jax.Array) -> Input:
        """Return the normalised (..., features), as a linear layer reads it."""
        if not self.config.centred and len(self.shape) == 1 and self.bias is None and self.shares is None:
            return Normed(x, self.weight[...], self.config.eps)
        if self.config.centred:
            x = x - self._mean(x)
        y = x * jax.lax.rsqrt(self._mean(jnp.square(x)) + self.config.eps)
        axes = (1,) * (x.ndim - len(self.shape))
        y = y * self.weight[...].reshape(*axes, *self.shape)
        return y if self.bias is None else y + self.bias[...].reshape(*axes, *self.shape)

    def _mean(self, x: jax.Array) -> jax.Array:
        """Return the mean over the features, on whatever devices they are."""
        if self.shares is None:
            return x.mean(-1, keepdims=True)
        return self.shard.sum((x * self.shares.here()[None]).sum(-1, keepdims=True))


def norm_of(weights: WeightSource, name: str, features: int, config: Norm) -> Normalise:
    """Return a normalisation of whole tokens, with one tensor of weights."""
    return Normalise(weights, {name: (features,)}, (features,), config)


ACTIVATIONS: Final[dict[Activation, Callable[[jax.Array], jax.Array]]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_quick": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu_squared": lambda x: jnp.square(jax.nn.relu(x)),
}


def activate(x: jax.Array, config: FeedForwardConfig) -> Input:
    """Apply an activation; if it is gated, to the first half of the features, which the second half multiplies.

    Returns:
        (tokens, features), as a linear layer reads it.
    """
    if not config.gated:
        return ACTIVATIONS[config.activation](x)
    if config.activation == "silu" and config.limit is None and not config.offset:
        return Gated(x)
    first, second = jnp.split(x, 2, axis=1)
    if config.limit is not None:
        first, second = jnp.minimum(first, config.limit), jnp.clip(second, -config.limit, config.limit)
    if config.offset:
        second += config.offset
    return ACTIVATIONS[config.activation](first) * second


def halves_first(heads: Sequence[int], head_dim: int, dims: int) -> Order:
    """Return the order that turns heads whose neighbours are pairs into heads of which (i, i + dims / 2) are.

    Scores do not change, as queries and keys have the same order.

    Args:
        heads: how many heads of each kind there are; those after the first two kinds, the values, stay as they are.
        head_dim: numbers of a head.
        dims: how many of its first numbers turn.
    """
    head = np.arange(head_dim)
    head[:dims] = np.concatenate([np.arange(0, dims, 2), np.arange(1, dims, 2)])
    turned, all_heads = sum(heads[:2]), sum(heads)
    rows = np.arange(all_heads * head_dim).reshape(all_heads, head_dim)
    rows[:turned] = rows[:turned, head]
    return rows.reshape(-1)
