"""Feed-forward layers, dense or with experts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rekindle.core.models.config import DualConfig, ExpertsConfig, FeedForwardConfig, ModelConfig, RouterConfig
from rekindle.core.models.layers import (
    XIELU_NUMBERS,
    JoinedTensors,
    Linear,
    WeightSource,
    activate,
    norm_of,
    xielu,
)
from rekindle.core.models.shard import TENSOR, Order, Shard, compose, rows_of
from rekindle_kernels import layers as kernels
from rekindle_kernels.inputs import Input, Normed


class FeedForward(nnx.Module, pytree=False):
    """Two products with an activation between them.

    Args:
        config: the sizes and the activation.
        hidden: the number of features of a token.
        weights: the source of the tensors.
        gate_up, down: the names of the projections.
        transposed: whether the projections are stored as (in, out).
        activation: the name of the activation, if it has learned numbers.
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
    ):
        halves, shard = 2 if config.gated else 1, weights.shard
        names = dict.fromkeys(gate_up, config.width * halves // len(gate_up))
        self.config, self.shard = config, shard
        own = shard.units(config.width)
        rows = rows_of(*((own, 1, half * config.width) for half in range(halves)))
        order, part = (None, None) if shard.of == 1 else (rows, own)
        self.gate_up = Linear(weights, hidden, names, config.bias, order, transposed=transposed)
        self.down = Linear(weights, config.width, {down: hidden}, config.bias, part=part, transposed=transposed)
        numbers = JoinedTensors({f"{activation}.{name}": shape for name, shape in XIELU_NUMBERS.items()}, False)
        self.numbers = nnx.Param(weights.get(numbers)) if config.activation == "xielu" else None

    def __call__(self, x: Input, onto: jax.Array | None) -> jax.Array:
        """Map (token, hidden) to (token, hidden), added to `onto`."""
        return self.down(self._inner(x), onto)

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


class Experts(nnx.Module, pytree=False):
    """Mixture of experts: each token uses a few of the experts, and possibly a shared layer."""

    def __init__(self, config: ExpertsConfig, model: ModelConfig, weights: WeightSource, prefix: str):
        names, hidden, width, count = model.names, model.hidden_size, config.each.width, config.count
        self.config, self.implementation, self.hidden, self.shard = (
            config,
            weights.implementation,
            hidden,
            weights.shard,
        )
        self.router = Linear(weights, hidden, {f"{prefix}.{names.router}": count}, config.router.bias)
        scale = JoinedTensors({f"{prefix}.{names.router_scale}": (hidden,)}, False)
        self.router_scale = None if config.router.norm is None else nnx.Param(weights.get(scale))
        scale = JoinedTensors({f"{prefix}.{names.expert_scale}": (count,)}, False)
        self.expert_scale = nnx.Param(weights.get(scale)) if config.router.expert_scale else None
        shape = (1, count) if names.correction_is_row else (count,)
        bias = JoinedTensors({f"{prefix}.{names.correction}": shape}, False)
        self.correction = nnx.Param(weights.get(bias)) if config.router.correction else None
        gate_up, down, transposed = names.expert_gate_up, (names.expert_down,), names.experts_transposed
        is_interleaved = transposed and names.experts_interleaved
        order = np.arange(2 * width).reshape(-1, 2).T.reshape(-1) if is_interleaved else None
        own = self.shard.units(width)
        rows = None if self.shard.of == 1 else rows_of((own, 1, 0), (own, 1, width))
        order = compose(order, rows)
        request = _expert_tensors(prefix, gate_up, (count, 2 * width, hidden), transposed, order)
        self.gate_up = nnx.Param(weights.get(request))
        request = _expert_tensors(prefix, down, (count, hidden, width), transposed)
        self.down = nnx.Param(weights.get(replace(request, inputs=None if self.shard.of == 1 else own)))
        every = None if order is None else (np.arange(count)[:, None] * 2 * width + order[None]).reshape(-1)
        bias = JoinedTensors({f"{prefix}.{names.expert_gate_up_bias}": (count, 2 * width)}, False, every)
        self.gate_up_bias = nnx.Param(weights.get(bias)) if config.each.bias else None
        bias = JoinedTensors({f"{prefix}.{names.expert_down_bias}": (count, hidden)}, False)
        self.down_bias = nnx.Param(weights.get(bias)) if config.each.bias else None
        self.shared = None if config.shared is None else _shared_expert(config.shared, model, weights, prefix)
        gate = {f"{prefix}.{names.shared_gate}": 1}
        self.shared_gate = Linear(weights, hidden, gate) if config.shared_gate else None

    def __call__(self, x: Input, onto: jax.Array | None, routed: jax.Array | None = None) -> jax.Array:
        """Map (token, hidden) to (token, hidden), added to `onto`.

        All tokens of an expert are computed together: rows are repeated once per expert of a token, and sorted by
        expert.

        Args:
            routed: (token, hidden), the input of the router; None for `x`.
        """
        x = kernels.materialize(x, implementation=self.implementation)
        experts, shares = self._route(x if routed is None else routed)
        per_token = experts.shape[1]
        order = jnp.argsort(experts.reshape(-1), stable=True)
        sorted_experts = experts.reshape(-1)[order]
        counts = jnp.bincount(sorted_experts, length=self.config.count).astype(jnp.int32)

        each, options = self.config.each, {"implementation": self.implementation}
        width = 2 * len(self.shard.units(each.width))
        rows = x[order // per_token]
        if self.config.weighted_inputs:
            rows, shares = rows * shares.reshape(-1)[order][:, None], jnp.ones_like(shares)
        inner = kernels.grouped_linear(rows, counts, self.gate_up[...], width, **options)
        if self.gate_up_bias is not None:
            inner += self.gate_up_bias[...].reshape(-1, width)[sorted_experts]
        inner = kernels.materialize(activate(inner, each), **options)
        out = kernels.grouped_linear(inner, counts, self.down[...], self.hidden, **options)
        places = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        mixed = (out[places].reshape(len(x), per_token, -1) * shares[:, :, None]).sum(1)
        if self.shared is not None:
            shared = self.shared.product(x)
            shared = shared if self.config.shared_scale == 1 else shared * self.config.shared_scale
            mixed += shared if self.shared_gate is None else shared * jax.nn.sigmoid(self.shared_gate(x))
        mixed = self.shard.sum(mixed)
        if self.down_bias is not None:
            mixed += (self.down_bias[...].reshape(-1, self.hidden)[experts] * shares[:, :, None]).sum(1)
        return mixed if onto is None else onto + mixed

    def _route(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the experts of each token, and their weights; see `route`."""
        router = self.config.router
        inputs: Input = x
        if router.norm is not None and self.router_scale is not None:
            inputs = Normed(x, self.router_scale[...] * self.hidden**-0.5, router.norm.eps)
        correction = None if self.correction is None else self.correction[...]
        experts, shares = route(self.router(inputs), router, correction)
        return experts, shares if self.expert_scale is None else shares * self.expert_scale[...][experts]


class DualFeedForward(nnx.Module, pytree=False):
    """A dense layer and experts over the same tokens, each between norms; their outputs are added."""

    def __init__(self, config: DualConfig, model: ModelConfig, weights: WeightSource, prefix: str):
        names, hidden, norm = model.names, model.hidden_size, model.norm
        assert names.before_mlp is not None, "both layers follow a norm"
        self.before_dense = norm_of(weights, f"{prefix}.{names.before_mlp}", hidden, norm)
        self.dense = _dense(config.dense, model, weights, prefix)
        self.after_dense = norm_of(weights, f"{prefix}.{names.after_dense}", hidden, norm)
        self.before_experts = norm_of(weights, f"{prefix}.{names.before_experts}", hidden, norm)
        self.experts = Experts(config.experts, model, weights, prefix)
        self.after_experts = norm_of(weights, f"{prefix}.{names.after_experts}", hidden, norm)

    def __call__(self, x: Input, onto: jax.Array | None) -> jax.Array:
        """Map (token, hidden) of the residual stream to (token, hidden), added to `onto`."""
        x = kernels.materialize(x, implementation=self.experts.implementation)
        dense = self.after_dense(self.dense(self.before_dense.input(x), None))
        both = dense + self.after_experts(self.experts(self.before_experts.input(x), None, routed=x))
        return both if onto is None else onto + both


def route(logits: jax.Array, config: RouterConfig, correction: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Choose experts for each token.

    Args:
        logits: (tokens, experts) float32.
        config: the rules.
        correction: (experts,) float32, added to the scores for the choice only.

    Returns:
        The indices of the chosen experts, (tokens, per_token) int32, and their weights, (tokens, per_token) float32.
    """
    if config.scores == "chosen":
        best, experts = jax.lax.top_k(logits, config.per_token)
        return experts, jax.nn.softmax(best, axis=-1) * config.scale
    if config.scores == "alike":
        return _route_alike(logits, config)
    scores = jax.nn.softmax(logits, axis=-1) if config.scores == "softmax" else jax.nn.sigmoid(logits)
    choosing = scores if correction is None else scores + correction[None]
    if config.groups > 1:
        grouped = choosing.reshape(len(logits), config.groups, -1)
        of_group = jax.lax.top_k(grouped, config.best_of_group)[0].sum(-1)
        best_groups = jax.lax.top_k(of_group, config.groups_per_token)[1]
        in_best = (best_groups[:, :, None] == jnp.arange(config.groups)[None, None]).any(1)
        choosing = jnp.where(in_best[:, :, None], grouped, -jnp.inf).reshape(logits.shape)
    experts = jax.lax.top_k(choosing, config.per_token)[1]
    shares = jnp.take_along_axis(scores, experts, axis=1)
    if config.normalised:
        shares = shares / shares.sum(-1, keepdims=True)
    return experts, shares * config.scale


def _route_alike(logits: jax.Array, config: RouterConfig) -> tuple[jax.Array, jax.Array]:
    """Choose the best experts one by one, each with its softmax over like ones among the rest."""
    experts, shares, rest = [], [], logits
    for _ in range(config.per_token):
        best = rest.max(-1, keepdims=True)
        is_like = (best - logits) / jnp.maximum(jnp.abs(logits), best) <= config.tolerance
        expert = rest.argmax(-1)
        weights = jax.nn.softmax(jnp.where(is_like, rest, -jnp.inf), axis=-1)
        experts.append(expert)
        shares.append(jnp.take_along_axis(weights, expert[:, None], axis=1)[:, 0])
        rest = jnp.where(jnp.arange(logits.shape[1])[None] == expert[:, None], -jnp.inf, rest)
    return jnp.stack(experts, axis=1), jnp.stack(shares, axis=1) * config.scale


AnyFeedForward = FeedForward | Experts | DualFeedForward


def feed_forward_of(
    config: FeedForwardConfig | ExpertsConfig | DualConfig, model: ModelConfig, weights: WeightSource, prefix: str
) -> AnyFeedForward:
    """Return the feed-forward layer with this config, from tensors with this name prefix."""
    match config:
        case ExpertsConfig():
            return Experts(config, model, weights, prefix)
        case DualConfig():
            return DualFeedForward(config, model, weights, prefix)
    return _dense(config, model, weights, prefix)


def _dense(config: FeedForwardConfig, model: ModelConfig, weights: WeightSource, prefix: str) -> FeedForward:
    names = model.names
    gate_up = tuple(f"{prefix}.{name}" for name in names.gate_up)
    down, activation = f"{prefix}.{names.down}", f"{prefix}.{names.activation}"
    return FeedForward(config, model.hidden_size, weights, gate_up, down, names.transposed, activation)


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
