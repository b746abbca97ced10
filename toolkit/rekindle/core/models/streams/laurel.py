"""A learned summand of a layer, beside attention: LAuReL (Menghani et al., 2024, arXiv:2411.07501)."""

import jax
from flax import nnx

from rekindle.core.models.config import ModelConfig
from rekindle.core.models.layers import Linear, norm_of
from rekindle.core.models.weights.requests import WeightSource
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Input


class Laurel(nnx.Module, pytree=False):
    """The input of attention plus a normalised product of low rank, in the mean with the residual stream.

    Args:
        rank: the rank of the product.
        model: the model.
        weights: the source of the tensors.
        prefix: the prefix of their names.
    """

    def __init__(self, rank: int, model: ModelConfig, weights: WeightSource, prefix: str):
        hidden = model.hidden_size
        self.down = Linear(weights, hidden, {f"{prefix}.linear_left": rank})
        self.up = Linear(weights, rank, {f"{prefix}.linear_right": hidden})
        self.norm = norm_of(weights, f"{prefix}.post_laurel_norm", hidden, model.norm)

    def __call__(self, inputs: Input, stream: jax.Array) -> jax.Array:
        """Return the new residual stream.

        Args:
            inputs: (token, hidden), the input of attention.
            stream: (token, hidden), the residual stream after attention.
        """
        x = kernels.materialize(inputs, implementation=self.down.implementation)
        return (stream + x + self.norm(self.up(self.down(x)))) * 2**-0.5
