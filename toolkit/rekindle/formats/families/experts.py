"""Readers of experts, and of routers with a correction, common to several families."""

from collections.abc import Sequence
from dataclasses import replace

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import ExpertsConfig, FeedForwardConfig, LayerConfig, Names, RouterConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of

SHARED = Names(
    shared_gate_up=("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    shared_down="mlp.shared_experts.down_proj",
)
"""Names of models with several shared experts, stored as one layer."""


def corrected_router(
    keys: Keys,
    *,
    per_token: int | None = 8,
    scale: float = 1.0,
    normalised: bool = True,
    groups: tuple[int, int] = (1, 1),
) -> RouterConfig:
    """Read a router with sigmoids and a correction. Groups of experts compete by their best two.

    Args:
        keys: the config.
        per_token, scale, normalised: the defaults of absent keys.
        groups: the defaults of the number of groups, and of groups per token.
    """
    keys.refuse("topk_method", "noaux_tc")
    keys.refuse("scoring_func", "sigmoid", "noaux_tc")  # dots.llm1's files have the method's name here
    return RouterConfig(
        keys.size("num_experts_per_tok", per_token),
        scores="sigmoid",
        normalised=keys.flag("norm_topk_prob", normalised),
        scale=keys.number("routed_scaling_factor", scale),
        correction=True,
        groups=keys.size("n_group", groups[0]),
        groups_per_token=keys.size("topk_group", groups[1]),
        best_of_group=2,
    )


def routed_experts(
    keys: Keys,
    router: RouterConfig,
    shared: int = 0,
    *,
    count: str = "n_routed_experts",
    shared_key: str = "n_shared_experts",
) -> ExpertsConfig:
    """Read experts, and shared experts stored as one layer.

    Args:
        keys: the config.
        router: the rules of the router.
        shared: the default number of shared experts.
        count, shared_key: the keys of the numbers of experts and of shared ones.
    """
    each = FeedForwardConfig(keys.size("moe_intermediate_size", keys.get("intermediate_size")), activation_of(keys))
    shared = keys.get(shared_key, shared)
    number = keys.size(count, keys.get("num_local_experts"))
    return ExpertsConfig(number, each, router, replace(each, width=shared * each.width) if shared else None)


def dense_first(
    keys: Keys, layers: Sequence[LayerConfig], experts: ExpertsConfig, dense: int = 1
) -> tuple[LayerConfig, ...]:
    """Return layers with experts in every `moe_layer_freq`-th layer after the first ones, or by `mlp_layer_types`.

    Args:
        keys: the config.
        layers: the layers, all dense.
        experts: the experts.
        dense: the default number of first layers without experts.
    """
    first, step = keys.get("first_k_dense_replace", dense), keys.size("moe_layer_freq", 1)
    kinds = keys.get("mlp_layer_types")
    if kinds is None:
        kinds = ["dense" if i < first or i % step else "sparse" for i in range(len(layers))]
    if len(kinds) != len(layers):
        raise CheckpointError(f"{keys.source}: mlp_layer_types must name {len(layers)} layers, got {len(kinds)}")
    for kind in set(kinds) - {"dense", "sparse"}:
        raise UnsupportedModel(f"{keys.source}: feed-forward layers of type {kind!r} are not supported")
    return tuple(
        replace(layer, feed_forward=experts) if kind == "sparse" else layer
        for layer, kind in zip(layers, kinds, strict=True)
    )
