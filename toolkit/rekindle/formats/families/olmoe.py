"""OLMoE: experts in every layer, and queries and keys normalised over all heads."""

from dataclasses import replace

from rekindle.core.models.config import ExpertsConfig, HeadNorm, ModelConfig, RouterConfig
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_feed_forward, read_llama, read_norm


def read(keys: Keys) -> ModelConfig:
    """Read an OLMoE. The width is of each expert."""
    bias, norm = keys.flag("attention_bias"), read_norm(keys, default=1e-5)
    attention = replace(
        read_attention(keys),
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorm(norm, over="all"),
        clip=keys.number_or_none("clip_qkv"),
    )
    model, experts = read_llama(keys, attention=attention), read_experts(keys, count=64, per_token=8)
    layers = tuple(replace(layer, feed_forward=experts) for layer in model.layers)
    return replace(model, layers=layers, norm=norm)


def read_experts(keys: Keys, *, count: int, per_token: int) -> ExpertsConfig:
    """Read the experts of an OLMo, with their default number and that of each token."""
    router = RouterConfig(keys.size("num_experts_per_tok", per_token), normalised=keys.flag("norm_topk_prob"))
    number = keys.size("num_experts", keys.get("num_local_experts", count))
    return ExpertsConfig(number, read_feed_forward(keys), router)
