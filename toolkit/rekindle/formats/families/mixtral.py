"""Mixtral: a Mistral with experts, whose weights always sum to 1."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, ModelConfig, Names, RouterConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, with_windows

NAMES = Names(
    router="block_sparse_moe.gate",
    expert_gate_up=("block_sparse_moe.experts.{expert}.w1.weight", "block_sparse_moe.experts.{expert}.w3.weight"),
    expert_down="block_sparse_moe.experts.{expert}.w2.weight",
)


def read(keys: Keys) -> ModelConfig:
    """Read a Mixtral."""
    model = read_llama(keys, attention=read_attention(keys, theta=1_000_000.0))
    router = RouterConfig(keys.size("num_experts_per_tok", 2), normalised=True)
    experts = ExpertsConfig(keys.size("num_local_experts", 8), read_feed_forward(keys), router)
    layers = tuple(replace(layer, feed_forward=experts) for layer in with_windows(keys, model.layers))
    return replace(model, layers=layers, names=NAMES)
