"""Granite MoE: a Granite with experts, all stored in one array."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, ModelConfig, Names, RouterConfig
from rekindle.core.models.families import granite
from rekindle.core.models.families.keys import Keys
from rekindle.core.models.families.reading import Family, read_feed_forward

NAMES = Names(
    router="block_sparse_moe.router.layer",
    expert_gate_up=("block_sparse_moe.input_linear.weight",),
    expert_down="block_sparse_moe.output_linear.weight",
)


def read(keys: Keys) -> ModelConfig:
    """Read a Granite MoE."""
    model = granite.read(keys)
    router = RouterConfig(keys.size("num_experts_per_tok", 2), scores="chosen")
    experts = ExpertsConfig(keys.size("num_local_experts", 8), read_feed_forward(keys), router)
    return replace(model, layers=tuple(replace(layer, feed_forward=experts) for layer in model.layers), names=NAMES)


GRANITEMOE = Family("GraniteMoeForCausalLM", read, "granitemoe")
