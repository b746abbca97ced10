"""The pieces of a decoder: linear maps, normalisation and rotary positions. Activations are float32, (token, ...)."""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from rekindle.models.config import Rope

Shapes = Mapping[str, tuple[int, ...]]
"""Tensors of a checkpoint by their Hugging Face names, with the shape that each must have."""

WeightSource = Callable[[Shapes], jax.Array]
"""Returns the named tensors, joined along their first axis. What it returns may be only a shape and dtype."""

# Up to this many float32 rows, a product runs a third faster on CPU with the weight as the left operand.
FEW_TOKENS = 64


class Linear(nnx.Module):
    """`x @ weight.T + bias` with float32 sums; projections of the same input are joined into one product.

    Args:
        weights: where the tensors come from.
        inputs: features of the input.
        outputs: features of each projection's output, by the projection's name in the checkpoint.
        bias: whether each projection adds a bias.

    Attributes:
        weight: (out, in), float32 or bfloat16, as checkpoints store it.
        bias: (out,) or None.
    """

    def __init__(self, weights: WeightSource, inputs: int, outputs: Mapping[str, int], bias: bool = False):
        self.weight = nnx.Param(weights({f"{name}.weight": (size, inputs) for name, size in outputs.items()}))
        self.bias = nnx.Param(weights({f"{name}.bias": (size,) for name, size in outputs.items()})) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (tokens, in) float32 to (tokens, out) float32."""
        y = matmul(x, self.weight[...])
        return y if self.bias is None else y + self.bias[...].astype(jnp.float32)[None]


def matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute `x @ weight.T` for x (tokens, in) and weight (out, in), in the form that is fastest on CPU.

    No product has a bfloat16 result or a single bfloat16 row, because XLA's CPU backend has only a naive loop for
    either (measured on 2 cores, tests/bench).
    """
    x = x.astype(weight.dtype)
    tokens = len(x)
    if weight.dtype == jnp.float32 and tokens <= FEW_TOKENS:
        y: jax.Array = lax.optimization_barrier(lax.dot_general(weight, x, (((1,), (1,)), ((), ()))))
        return y.T
    if weight.dtype == jnp.bfloat16 and tokens == 1:
        x = jnp.broadcast_to(x, (2, x.shape[1]))
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)[:tokens]


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation over the last axis (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

    def __init__(self, weights: WeightSource, name: str, features: int, eps: float):
        self.weight = nnx.Param(weights({f"{name}.weight": (features,)}))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (..., features) float32."""
        scale = lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        weight = self.weight[...].astype(jnp.float32)
        return x * scale * jnp.expand_dims(weight, tuple(range(x.ndim - 1)))


def rope_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Return the angle per position of each rotated pair: (head_dim / 2,) float32, in radians."""
    frequencies = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if (scaling := rope.scaling) is None:
        return frequencies.astype(np.float32)
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return (frequencies * (kept + (1 - kept) / scaling.factor)).astype(np.float32)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate each pair (i, i + head_dim / 2) of x (token, head, head_dim) by its angle.

    Args:
        cos, sin: of the angles, (token, head_dim / 2).
    """
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
