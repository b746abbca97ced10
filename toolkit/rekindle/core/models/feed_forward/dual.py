"""Feed-forward layers of a dense layer beside experts."""

import jax
from flax import nnx

from rekindle.core.models.config import DualConfig, ModelConfig
from rekindle.core.models.feed_forward.dense import dense_of
from rekindle.core.models.feed_forward.experts import Experts
from rekindle.core.models.layers import norm_of
from rekindle.core.models.weights.requests import WeightSource
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Input


class DualFeedForward(nnx.Module, pytree=False):
    """A dense layer and experts over the same tokens, each between norms; their outputs are added."""

    def __init__(self, config: DualConfig, model: ModelConfig, weights: WeightSource, prefix: str):
        names, hidden, norm = model.names, model.hidden_size, model.norm
        assert names.before_mlp is not None, "both layers follow a norm"
        self.before_dense = norm_of(weights, f"{prefix}.{names.before_mlp}", hidden, norm)
        self.dense = dense_of(config.dense, model, weights, prefix)
        self.after_dense = norm_of(weights, f"{prefix}.{names.after_dense}", hidden, norm)
        self.before_experts = norm_of(weights, f"{prefix}.{names.before_experts}", hidden, norm)
        self.experts = Experts(config.experts, model, weights, prefix)
        self.after_experts = norm_of(weights, f"{prefix}.{names.after_experts}", hidden, norm)

    def __call__(self, x: Input, onto: jax.Array | None) -> jax.Array:
        """Map (token, hidden) of the residual stream to (token, hidden), added to `onto`."""
        x = kernels.materialize(x, implementation=self.experts.gate_up.implementation)
        dense = self.after_dense(self.dense(self.before_dense.input(x), None))
        both = dense + self.after_experts(self.experts(self.before_experts.input(x), None, routed=x))
        return both if onto is None else onto + both
