"""Qwen2 MoE: a Qwen2 with experts in some layers, and with a gated shared expert."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, FeedForwardConfig, LayerConfig, ModelConfig, RouterConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, read_attention, read_llama, with_windows


def read(keys: Keys) -> ModelConfig:
    """Read a Qwen2 MoE. If windows are on, even layers below `max_window_layers` have a window."""
    attention = replace(read_attention(keys), qkv_bias=keys.flag("qkv_bias", True))
    model, last = read_llama(keys, attention=attention), keys.get("max_window_layers", 28)
    experts = replace(
        read_experts(keys),
        shared=FeedForwardConfig(keys.size("shared_expert_intermediate_size", 5632), activation_of(keys)),
        shared_gate=True,
    )
    layers = with_windows(keys, model.layers, lambda i: i % 2 == 0 and i < last, default_on=False)
    return replace(model, layers=with_experts(keys, layers, experts))


def read_experts(keys: Keys) -> ExpertsConfig:
    """Read the experts of a Qwen, with the older or the newer key for their number."""
    count = keys.size("num_experts", keys.get("num_local_experts"))
    keys.get("num_local_experts")
    router = RouterConfig(keys.size("num_experts_per_tok"), normalised=keys.flag("norm_topk_prob"))
    return ExpertsConfig(count, FeedForwardConfig(keys.size("moe_intermediate_size"), activation_of(keys)), router)


def with_experts(keys: Keys, layers: tuple[LayerConfig, ...], experts: ExpertsConfig) -> tuple[LayerConfig, ...]:
    """Return the layers with experts in every `decoder_sparse_step`-th layer, except in `mlp_only_layers`."""
    step, dense = keys.size("decoder_sparse_step", 1), set(keys.get("mlp_only_layers", ()))
    return tuple(
        layer if i in dense or (i + 1) % step else replace(layer, feed_forward=experts)
        for i, layer in enumerate(layers)
    )
