"""The feed-forward layer, dense or of experts."""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.models.config import ExpertsConfig, FeedForwardConfig, LayerConfig, ModelConfig, RouterConfig
from rekindle.models.layers import Joined, Linear, WeightSource, activate
from rekindle_kernels import layers as kernels


class FeedForward(nnx.Module):
    """Two products with an activation between them.

    Args:
        hidden: features of a token.
        gate_up, down: names of the projections.
    """

    def __init__(
        self, config: FeedForwardConfig, hidden: int, weights: WeightSource, gate_up: tuple[str, ...], down: str
    ):
        width = config.width * (2 if config.gated else 1) // len(gate_up)
        self.config = config
        self.gate_up = Linear(weights, hidden, dict.fromkeys(gate_up, width), config.bias)
        self.down = Linear(weights, config.width, {down: hidden}, config.bias)

    def __call__(self, x: jax.Array, onto: jax.Array | None) -> jax.Array:
        """Map (token, hidden) to the same, added to `onto`."""
        implementation = self.down.implementation
        return self.down(activate(self.gate_up(x), self.config.activation, self.config.gated, implementation), onto)


class Experts(nnx.Module):
    """Feed-forward layers of which each token goes to a few, and perhaps one that all go to."""

    def __init__(self, config: ExpertsConfig, model: ModelConfig, weights: WeightSource, prefix: str):
        names, hidden, width, count = model.names, model.hidden_size, config.each.width, config.count
        self.config, self.implementation, self.hidden = config, weights.implementation, hidden
        self.router = Linear(weights, hidden, {f"{prefix}.{names.router}": count}, config.router.bias)
        bias = Joined({f"{prefix}.{names.correction}": (count,)}, False)
        self.correction = nnx.Param(weights.get(bias)) if config.router.correction else None
        gate_up, down = names.expert_gate_up, (names.expert_down,)
        self.gate_up = nnx.Param(weights.get(_of_experts(prefix, gate_up, count, 2 * width, hidden)))
        self.down = nnx.Param(weights.get(_of_experts(prefix, down, count, hidden, width)))
        self.shared = None if config.shared is None else _shared(config.shared, model, weights, prefix)
        gate = {f"{prefix}.{names.shared_gate}": 1}
        self.shared_gate = Linear(weights, hidden, gate) if config.shared_gate else None

    def __call__(self, x: jax.Array, onto: jax.Array | None) -> jax.Array:
        """Map (token, hidden) to the same, added to `onto`.

        The tokens of an expert are computed together: each token is there as often as it has experts, in the order of
        these.
        """
        correction = None if self.correction is None else self.correction[...]
        experts, shares = route(self.router(x), self.config.router, correction)
        chosen = experts.shape[1]
        order = jnp.argsort(experts.reshape(-1), stable=True)
        counts = jnp.bincount(experts.reshape(-1), length=self.config.count).astype(jnp.int32)
        named = {"implementation": self.implementation}
        into = kernels.grouped_linear(
            x[order // chosen], counts, self.gate_up[...], 2 * self.config.each.width, **named
        )
        inner = activate(into, self.config.each.activation, self.config.each.gated, self.implementation)
        out = kernels.grouped_linear(inner, counts, self.down[...], self.hidden, **named)
        places = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        mixed = (out[places].reshape(len(x), chosen, -1) * shares[:, :, None]).sum(1)
        if self.shared is not None:
            shared = self.shared(x, None)
            mixed += shared if self.shared_gate is None else shared * jax.nn.sigmoid(self.shared_gate(x))
        return mixed if onto is None else onto + mixed


def route(logits: jax.Array, config: RouterConfig, correction: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Choose experts for each token.

    Args:
        logits: (tokens, experts) float32.
        correction: (experts,) float32, added to the scores that choose.

    Returns:
        Their numbers, (tokens, chosen) int32, and their weights, (tokens, chosen) float32.
    """
    if config.scores == "chosen":
        best, experts = jax.lax.top_k(logits, config.chosen)
        return experts, jax.nn.softmax(best, axis=-1) * config.scale
    scores = jax.nn.softmax(logits, axis=-1) if config.scores == "softmax" else jax.nn.sigmoid(logits)
    choosing = scores if correction is None else scores + correction[None]
    if config.groups > 1:
        grouped = choosing.reshape(len(logits), config.groups, -1)
        of_group = jax.lax.top_k(grouped, config.best_of_group)[0].sum(-1)
        kept = jax.lax.top_k(of_group, config.chosen_groups)[1]
        in_kept = (kept[:, :, None] == jnp.arange(config.groups)[None, None]).any(1)
        choosing = jnp.where(in_kept[:, :, None], grouped, -jnp.inf).reshape(logits.shape)
    experts = jax.lax.top_k(choosing, config.chosen)[1]
    shares = jnp.take_along_axis(scores, experts, axis=1)
    if config.normalised:
        shares = shares / shares.sum(-1, keepdims=True)
    return experts, shares * config.scale


def feed_forward_of(
    model: ModelConfig, layer: LayerConfig, weights: WeightSource, prefix: str
) -> FeedForward | Experts:
    """Return the feed-forward layer of a layer whose tensors' names begin with `prefix`."""
    if layer.experts is not None:
        return Experts(layer.experts, model, weights, prefix)
    gate_up = tuple(f"{prefix}.{name}" for name in model.names.gate_up)
    return FeedForward(model.feed_forward, model.hidden_size, weights, gate_up, f"{prefix}.{model.names.down}")


def _shared(config: FeedForwardConfig, model: ModelConfig, weights: WeightSource, prefix: str) -> FeedForward:
    gate_up = tuple(f"{prefix}.{name}" for name in model.names.shared_gate_up)
    return FeedForward(config, model.hidden_size, weights, gate_up, f"{prefix}.{model.names.shared_down}")


def _of_experts(prefix: str, names: tuple[str, ...], count: int, outputs: int, inputs: int) -> Joined:
    """Return what to ask for to have a projection of all experts."""
    if "{expert}" not in names[0]:
        return Joined(
            {f"{prefix}.{name}.weight": (count, outputs // len(names), inputs) for name in names}, True, groups=count
        )
    shapes = {
        f"{prefix}.{name.format(expert=expert)}.weight": (outputs // len(names), inputs)
        for expert in range(count)
        for name in names
    }
    return Joined(shapes, True, groups=count)
