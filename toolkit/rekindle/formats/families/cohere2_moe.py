"""Cohere 2 with experts: chosen by logits after dense layers, and averaged with shared ones."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, LayerConfig, ModelConfig, RouterConfig
from rekindle.formats.families.cohere import read_cohere
from rekindle.formats.families.experts import SHARED, dense_first
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import layer_types, read_feed_forward, read_norm, without_positions

NAMES = replace(SHARED, before_mlp=None)


def read(keys: Keys) -> ModelConfig:
    """Read a Cohere 2 with experts. Only layers with windows, and some of the first ones, have positions."""
    model, each = read_cohere(keys, head_dim=128), read_feed_forward(keys)
    count = keys.get("num_shared_experts", 0)
    shared = replace(each, width=count * each.width) if count else None
    share = _share(keys) if count else 1.0
    experts = ExpertsConfig(keys.size("num_experts", 8), each, _router(keys, share), shared, shared_scale=share)
    dense = replace(each, width=keys.size("prefix_dense_intermediate_size", each.width))
    plain = (replace(model.layers[0], feed_forward=dense),) * model.num_layers
    layers = dense_first(keys, plain, experts, 0)
    norm = read_norm(keys) if keys.get("rms_norm_eps") is not None else model.norm
    return replace(model, layers=_with_windows(keys, layers), norm=norm, names=NAMES)


def _share(keys: Keys) -> float:
    """Return the factor of both the experts and the shared ones."""
    keys.refuse("shared_expert_combination_strategy", "average", "sum")
    return 0.5 if keys.get("shared_expert_combination_strategy", "average") == "average" else 1.0


def _router(keys: Keys, scale: float) -> RouterConfig:
    keys.refuse("expert_selection_fn", "softmax", "sigmoid")
    per_token, normalised = keys.size("num_experts_per_tok", 2), keys.flag("norm_topk_prob", True)
    if keys.get("expert_selection_fn", "softmax") == "softmax":
        return RouterConfig(per_token, scores="chosen", scale=scale)
    return RouterConfig(per_token, scores="sigmoid", normalised=normalised, scale=scale)


def _with_windows(keys: Keys, layers: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    first, of_first = keys.get("first_k_dense_replace", 0), keys.size("prefix_dense_sliding_window_pattern", 1)
    pattern, size = keys.size("sliding_window_pattern", 4), keys.size("sliding_window", 4096)
    kinds = layer_types(
        keys, len(layers), lambda i: (i + 1) % of_first > 0 if i < first else (i - first + 1) % pattern > 0
    )
    return tuple(
        _windowed(layer, size)
        if kind == "sliding_attention"
        else layer
        if of_first == 1 and not isinstance(layer.feed_forward, ExpertsConfig)
        else without_positions(layer)
        for layer, kind in zip(layers, kinds, strict=True)
    )


def _windowed(layer: LayerConfig, size: int) -> LayerConfig:
    assert layer.attention is not None
    return replace(layer, attention=replace(layer.attention, window=size))
