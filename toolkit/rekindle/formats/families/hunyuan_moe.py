"""Hunyuan A13B: a dense Hunyuan with experts beside a shared layer of the same width."""

from dataclasses import replace
from typing import Any

from rekindle.core.models.config import ExpertsConfig, ModelConfig, RouterConfig
from rekindle.formats.families import hunyuan
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_feed_forward

NAMES = replace(
    hunyuan.NAMES,
    router="mlp.gate.wg",
    shared_gate_up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared_down="mlp.shared_mlp.down_proj",
)
ONLY = {"moe_layer_num_skipped": 0, "use_cla": False, "use_mixed_mlp_moe": True, "mlp_bias": False}
"""Keys of published files with a single supported value."""


def read(keys: Keys) -> ModelConfig:
    """Read a Hunyuan with experts. Numbers of experts may be lists over layers."""
    for key, value in ONLY.items():
        keys.refuse(key, value)
    model, each = hunyuan.read(keys), read_feed_forward(keys)
    for key, value in (("moe_intermediate_size", each.width), ("num_shared_expert", 1)):
        if any(number != value for number in _over_layers(keys, key, value, model.num_layers)):
            keys.refuse(key)
    counts = _over_layers(keys, "num_experts", 1, model.num_layers)
    per_tokens = _over_layers(keys, "moe_topk", keys.get("num_experts_per_tok", 1), model.num_layers)
    layers = tuple(
        replace(layer, feed_forward=ExpertsConfig(count, each, RouterConfig(per_token, normalised=True), each))
        for layer, count, per_token in zip(model.layers, counts, per_tokens, strict=True)
    )
    return replace(model, layers=layers, names=NAMES)


def _over_layers(keys: Keys, key: str, default: int, layers: int) -> list[int]:
    """Return a number for each layer, from a list or a common number."""
    value: Any = keys.get(key, default)
    if isinstance(value, list) and len(value) == layers and all(isinstance(each, int) for each in value):
        return value
    return [keys.size(key, default)] * layers
