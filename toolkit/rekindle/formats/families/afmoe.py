"""Arcee's Trinity: gates of attention's output, norms around branches, and layers with either a window or no rope."""

import math
from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, FeedForwardConfig, HeadNorm, LayerConfig, ModelConfig
from rekindle.formats.families.experts import SHARED, corrected_router
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import (
    activation_of,
    read_attention,
    read_llama,
    read_norm,
    with_windows,
    without_positions,
)

NAMES = replace(
    SHARED,
    router="mlp.router.gate",
    correction="mlp.expert_bias",
    after_attention="post_attention_layernorm",
    before_mlp="pre_mlp_layernorm",
    after_mlp="post_mlp_layernorm",
)
ONLY = {"attention_bias": False, "n_group": 1, "num_expert_groups": 1, "route_norm": True, "score_func": "sigmoid"}
"""Keys with a single supported value."""


def read(keys: Keys) -> ModelConfig:
    """Read a Trinity. Layers with full attention have no positions."""
    for key, value in ONLY.items():
        keys.refuse(key, value)
    for unused in ("load_balance_coeff", "num_limited_groups", "topk_group", "use_grouped_mm"):
        keys.get(unused)
    norm = read_norm(keys, default=1e-5)
    attention = replace(read_attention(keys, head_dim=128), head_norm=HeadNorm(norm), output_gate=True)
    model = read_llama(keys, attention=attention)
    every = keys.size("global_attn_every_n_layers", 4)
    layers = with_windows(
        keys,
        tuple(map(without_positions, model.layers)),
        lambda i: (i + 1) % every > 0,
        rope=attention.rope,
        default_size=1024,
    )
    return replace(
        model,
        layers=_with_experts(keys, layers),
        norm=norm,
        embedding_multiplier=math.sqrt(model.hidden_size) if keys.flag("mup_enabled") else 1.0,
        names=NAMES,
    )


def _with_experts(keys: Keys, layers: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    each = FeedForwardConfig(keys.size("moe_intermediate_size", 1408), activation_of(keys))
    shared = keys.get("num_shared_experts", 2)
    router = replace(corrected_router(keys, per_token=6), scale=keys.number("route_scale", 1.0))
    common = replace(each, width=shared * each.width) if shared else None
    experts = ExpertsConfig(keys.size("num_experts", 64), each, router, common)
    first = keys.get("num_dense_layers", 1)
    return tuple(layer if i < first else replace(layer, feed_forward=experts) for i, layer in enumerate(layers))
