"""Text model of Qwen3-VL with experts: a Qwen3 MoE with the experts of a layer in one tensor."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, LayerConfig, ModelConfig
from rekindle.formats.families import qwen3_moe
from rekindle.formats.families.keys import Keys


def read(keys: Keys) -> ModelConfig:
    """Read the text model of a Qwen3-VL MoE. The weights of a token's experts are always normalised."""
    model = qwen3_moe.read(keys)
    names = replace(model.names, expert_gate_up=("mlp.experts.gate_up_proj",), expert_down="mlp.experts.down_proj")
    return replace(model, layers=tuple(map(_normalised, model.layers)), names=names)


def _normalised(layer: LayerConfig) -> LayerConfig:
    experts = layer.feed_forward
    if not isinstance(experts, ExpertsConfig):
        return layer
    return replace(layer, feed_forward=replace(experts, router=replace(experts.router, normalised=True)))
