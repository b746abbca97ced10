"""The pieces of a decoder: linear maps, normalisation and rotary positions. Activations are float32, (token, ...)."""

import math
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.models.config import Rope
from rekindle_kernels import layers as kernels
from rekindle_kernels.api import Implementation

Shapes = Mapping[str, tuple[int, ...]]
"""Tensors of a checkpoint by their Hugging Face names, with the shape that each must have."""


class WeightSource(Protocol):
    """The source of the tensors of a decoder that is being built. What it gives may be only shapes and dtypes.

    Attributes:
        implementation: of the kernels that read the matrices.
    """

    implementation: Implementation

    def vector(self, shapes: Shapes) -> jax.Array:
        """Return the named tensors, joined along their first axis."""

    def matrix(self, shapes: Shapes) -> jax.Array:
        """Return the named matrices, (out, in) each, joined along `out`, as `kernels.packed` says."""


class Linear(nnx.Module):
    """`x @ weight.T + bias` with float32 sums; projections of the same input are joined into one product.

    Args:
        weights: where the tensors come from.
        inputs: features of the input.
        outputs: features of each projection's output, by the projection's name in the checkpoint.
        bias: whether each projection adds a bias.

    Attributes:
        weight: (out, in), float32 or bfloat16, in the form that the kernels read.
        bias: (out,) or None.
    """

    def __init__(self, weights: WeightSource, inputs: int, outputs: Mapping[str, int], bias: bool = False):
        self.outputs, self.implementation = sum(outputs.values()), weights.implementation
        self.weight = nnx.Param(weights.matrix({f"{name}.weight": (size, inputs) for name, size in outputs.items()}))
        biases = {f"{name}.bias": (size,) for name, size in outputs.items()}
        self.bias = nnx.Param(weights.vector(biases)) if bias else None

    def __call__(self, x: jax.Array, onto: jax.Array | None = None) -> jax.Array:
        """Map (tokens, in) float32 to (tokens, out) float32, added to `onto`, such as the residual stream."""
        y = kernels.linear(x, self.weight[...], self.outputs, implementation=self.implementation, onto=onto)
        return y if self.bias is None else y + self.bias[...].astype(jnp.float32)[None]


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation over the last axis (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

    def __init__(self, weights: WeightSource, name: str, features: int, eps: float):
        self.weight = nnx.Param(weights.vector({f"{name}.weight": (features,)}))
        self.eps, self.implementation = eps, weights.implementation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise (..., features) float32."""
        return kernels.rms_norm(x, self.weight[...], self.eps, implementation=self.implementation)


def rope_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Return the angle per position of each rotated pair: (head_dim / 2,) float32, in radians."""
    frequencies = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if (scaling := rope.scaling) is None:
        return frequencies.astype(np.float32)
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return (frequencies * (kept + (1 - kept) / scaling.factor)).astype(np.float32)
