"""Feed-forward layers with experts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import ExpertsConfig, FeedForwardConfig, ModelConfig
from rekindle.core.models.config.partition import Order
from rekindle.core.models.feed_forward.dense import FeedForward
from rekindle.core.models.feed_forward.router import ExpertRouter
from rekindle.core.models.layers import Linear, activate
from rekindle.core.models.shard import compose, rows_of
from rekindle.core.models.weights.requests import JoinedTensors, Matrix, WeightSource
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Input


class Experts(nnx.Module, pytree=False):
    """Mixture of experts: each token uses a few of the experts, and possibly a shared layer."""

    def __init__(self, config: ExpertsConfig, model: ModelConfig, weights: WeightSource, prefix: str):
        names, hidden = model.names, model.hidden_size
        self.config, self.shard = config, weights.shard
        self.router = ExpertRouter(config, model, weights, prefix)
        self.gate_up = _gate_up(config, model, weights, prefix)
        self.down = _down(config, model, weights, prefix)
        self.shared = None if config.shared is None else _shared_expert(config.shared, model, weights, prefix)
        inner, outer = f"{prefix}.{names.latent_in}", f"{prefix}.{names.latent_out}"
        size = config.latent
        self.latent_in = None if size is None else Linear(weights, hidden, {inner: size})
        self.latent_out = None if size is None else Linear(weights, size, {outer: hidden})
        gate = {f"{prefix}.{names.shared_gate}": 1}
        self.shared_gate = Linear(weights, hidden, gate) if config.shared_gate else None

    def __call__(self, x: Input, onto: jax.Array | None, routed: jax.Array | None = None) -> jax.Array:
        """Map (token, hidden) to (token, hidden), added to `onto`.

        All tokens of an expert are computed together: rows are repeated once per expert of a token, and sorted by
        expert.

        Args:
            routed: (token, hidden), the input of the router; None for `x`.
        """
        x = kernels.materialize(x, implementation=self.gate_up.implementation)
        experts, shares = self.router(x if routed is None else routed)
        per_token = experts.shape[1]
        order = jnp.argsort(experts.reshape(-1), stable=True)
        sorted_experts = experts.reshape(-1)[order]
        counts = jnp.bincount(sorted_experts, length=self.config.count).astype(jnp.int32)

        rows = (x if self.latent_in is None else self.latent_in(x))[order // per_token]
        if self.config.weighted_inputs:
            rows, shares = rows * shares.reshape(-1)[order][:, None], jnp.ones_like(shares)
        inner = self.gate_up.product(rows, counts)
        if self.gate_up.bias is not None:
            inner += self.gate_up.bias_of(sorted_experts)
        inner = kernels.materialize(activate(inner, self.config.each), implementation=self.gate_up.implementation)
        out = self.down.product(inner, counts)
        places = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        mixed = (out[places].reshape(len(x), per_token, -1) * shares[:, :, None]).sum(1)
        mixed = mixed if self.latent_out is None else self.latent_out(mixed)
        if self.shared is not None:
            shared = self.shared.product(x)
            shared = shared if self.config.shared_scale == 1 else shared * self.config.shared_scale
            mixed += shared if self.shared_gate is None else shared * jax.nn.sigmoid(self.shared_gate(x))
        mixed = self.shard.sum(mixed)
        if self.down.bias is not None:
            mixed += (self.down.bias_of(experts) * shares[:, :, None]).sum(1)
        return mixed if onto is None else onto + mixed


class ExpertLinear(nnx.Module, pytree=False):
    """A projection of all experts.

    Args:
        weights: the source of the tensors.
        outputs: the number of outputs of an expert on this device.
        request: the matrices of all experts.
        bias: the vectors of all experts, joined; None for no bias.
    """

    def __init__(self, weights: WeightSource, outputs: int, request: JoinedTensors, bias: JoinedTensors | None):
        self.outputs, self.implementation = outputs, weights.implementation
        self.weight = Matrix(weights, request)
        self.bias = None if bias is None else nnx.Param(weights.get(bias))

    def product(self, rows: jax.Array, counts: jax.Array) -> jax.Array:
        """Return the products of rows sorted by expert, (rows, outputs), without the bias; see `grouped_linear`."""
        return kernels.grouped_linear(rows, counts, self.weight(), self.outputs, implementation=self.implementation)

    def bias_of(self, experts: jax.Array) -> jax.Array:
        """Return the bias of each of some experts, (..., outputs)."""
        assert self.bias is not None, "the projection has a bias"
        bias: jax.Array = self.bias[...].reshape(-1, self.outputs)[experts]
        return bias


def _gate_up(config: ExpertsConfig, model: ModelConfig, weights: WeightSource, prefix: str) -> ExpertLinear:
    names, width, count, shard = model.names, config.each.width, config.count, weights.shard
    halves = 2 if config.each.gated else 1
    is_interleaved = names.experts_transposed and names.experts_interleaved and halves == 2
    order = np.arange(2 * width).reshape(-1, 2).T.reshape(-1) if is_interleaved else None
    own = shard.units(width)
    order = compose(order, None if shard.of == 1 else rows_of(*((own, 1, half * width) for half in range(halves))))
    shape = (count, halves * width, config.latent or model.hidden_size)
    request = _expert_tensors(prefix, names.expert_gate_up, shape, names.experts_transposed, order)
    every = None if order is None else (np.arange(count)[:, None] * halves * width + order[None]).reshape(-1)
    bias = JoinedTensors({f"{prefix}.{names.expert_gate_up_bias}": (count, halves * width)}, False, every)
    return ExpertLinear(weights, halves * len(own), request, bias if config.each.bias else None)


def _down(config: ExpertsConfig, model: ModelConfig, weights: WeightSource, prefix: str) -> ExpertLinear:
    names, width, hidden = model.names, config.each.width, config.latent or model.hidden_size
    shape = (config.count, hidden)
    request = _expert_tensors(prefix, (names.expert_down,), (*shape, width), names.experts_transposed)
    request = replace(request, inputs=None if weights.shard.of == 1 else weights.shard.units(width))
    bias = JoinedTensors({f"{prefix}.{names.expert_down_bias}": shape}, False)
    return ExpertLinear(weights, hidden, request, bias if config.each.bias else None)


def _shared_expert(config: FeedForwardConfig, model: ModelConfig, weights: WeightSource, prefix: str) -> FeedForward:
    gate_up = tuple(f"{prefix}.{name}" for name in model.names.shared_gate_up)
    return FeedForward(config, model.hidden_size, weights, gate_up, f"{prefix}.{model.names.shared_down}")


def _expert_tensors(
    prefix: str, names: tuple[str, ...], shape: tuple[int, int, int], transposed: bool, order: Order | None = None
) -> JoinedTensors:
    """Return the request for a projection of all experts, of the shape (experts, out, in)."""
    count, outputs, inputs = shape
    one = (inputs, outputs) if transposed else (outputs // len(names), inputs)
    if "{expert}" not in names[0]:
        return JoinedTensors(
            {f"{prefix}.{name}": (count, *one) for name in names}, True, order, groups=count, transposed=transposed
        )
    shapes = {f"{prefix}.{name.format(expert=expert)}": one for expert in range(count) for name in names}
    return JoinedTensors(shapes, True, order, groups=count, transposed=transposed)
