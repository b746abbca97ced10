"""Granite MoE: a Granite with experts, all stored in one array."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, ModelConfig, Names, RouterConfig
from rekindle.formats.families import granite
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_feed_forward

NAMES = Names(
    router="block_sparse_moe.router.layer",
    expert_gate_up=("block_sparse_moe.input_linear.weight",),
    expert_down="block_sparse_moe.output_linear.weight",
    shared_gate_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
)


def read(keys: Keys) -> ModelConfig:
    """Read a Granite MoE."""
    model = granite.read(keys)
    router = RouterConfig(keys.size("num_experts_per_tok", 2), scores="chosen")
    experts = ExpertsConfig(keys.size("num_local_experts", 8), read_feed_forward(keys), router)
    return replace(model, layers=tuple(replace(layer, feed_forward=experts) for layer in model.layers), names=NAMES)


def read_shared(keys: Keys) -> ModelConfig:
    """Read a Granite MoE with a shared expert."""
    model = read(keys)
    width = keys.get("shared_intermediate_size", 0)
    shared = replace(read_feed_forward(keys), width=width) if width else None
    layers = tuple(
        replace(layer, feed_forward=replace(layer.feed_forward, shared=shared))
        for layer in model.layers
        if isinstance(layer.feed_forward, ExpertsConfig)
    )
    return replace(model, layers=layers)
