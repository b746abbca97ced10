"""Choice of the experts of each token."""

import jax
import jax.numpy as jnp
from flax import nnx

from rekindle.core.models.config import ExpertsConfig, ModelConfig, RouterConfig
from rekindle.core.models.layers import Linear
from rekindle.core.models.weights.requests import JoinedTensors, WeightSource
from rekindle_kernels.inputs import Input, Normed


class ExpertRouter(nnx.Module, pytree=False):
    """Product with the rules that choose a token's experts, and their weights."""

    def __init__(self, experts: ExpertsConfig, model: ModelConfig, weights: WeightSource, prefix: str):
        def vector(name: str, *shape: int) -> nnx.Param[jax.Array]:
            return nnx.Param(weights.get(JoinedTensors({f"{prefix}.{name}": shape}, False)))

        config, names, count, hidden = experts.router, model.names, experts.count, model.hidden_size
        self.config, self.hidden = config, hidden
        self.product = Linear(weights, hidden, {f"{prefix}.{names.router}": count}, config.bias)
        self.scale = None if config.norm is None else vector(names.router_scale, hidden)
        self.expert_scale = vector(names.expert_scale, count) if config.expert_scale else None
        row = (1,) if names.correction_is_row else ()
        self.correction = vector(names.correction, *row, count) if config.correction else None

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the experts of each token, and their weights; see `route`.

        Args:
            x: (tokens, hidden) float32.
        """
        inputs: Input = x
        if self.config.norm is not None and self.scale is not None:
            inputs = Normed(x, self.scale[...] * self.hidden**-0.5, self.config.norm.eps)
        correction = None if self.correction is None else self.correction[...]
        experts, shares = route(self.product(inputs), self.config, correction)
        return experts, shares if self.expert_scale is None else shares * self.expert_scale[...][experts]


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
        total = shares.sum(-1, keepdims=True)
        shares = shares / (total + config.eps if config.eps else total)
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
