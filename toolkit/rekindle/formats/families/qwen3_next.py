"""Qwen3-Next and Qwen3.5: gated delta nets in most layers, and gated attention in every fourth."""

from dataclasses import replace
from typing import Final

from rekindle.core.errors import CheckpointError
from rekindle.core.models.config import (
    DeltaNet,
    ExpertsConfig,
    FeedForwardConfig,
    HeadNorm,
    ModelConfig,
    Names,
    RouterConfig,
)
from rekindle.formats.families.hybrid import kinds_of, with_states
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.qwen2_moe import with_experts
from rekindle.formats.families.reading import (
    activation_of,
    read_attention,
    read_feed_forward,
    read_llama,
    read_norm,
)

NAMES: Final = Names(
    gated_queries=True, state="linear_attn", state_in=("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
)
NEXT_NAMES: Final = replace(NAMES, state_in=("in_proj_qkvz", "in_proj_ba"), state_by_key_head=True)
UNUSED: Final = ("mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers")
"""Keys of states' dtype, always float32 here, and of layers that predict several tokens."""


def read(keys: Keys) -> ModelConfig:
    """Read a Qwen3.5."""
    return _read(keys, read_feed_forward(keys))


def read_moe(keys: Keys) -> ModelConfig:
    """Read a Qwen3.5 with experts in all layers."""
    experts = _experts(keys, normalised=True)
    keys.get("intermediate_size")
    model = _read(keys, FeedForwardConfig(experts.each.width))
    return replace(model, layers=tuple(replace(layer, feed_forward=experts) for layer in model.layers))


def read_next(keys: Keys) -> ModelConfig:
    """Read a Qwen3-Next, with experts in some layers."""
    feed_forward = replace(read_feed_forward(keys), width=keys.size("intermediate_size", 5632))
    model = _read(keys, feed_forward)
    experts = _experts(keys, normalised=keys.flag("norm_topk_prob", True))
    return replace(model, layers=with_experts(keys, model.layers, experts), names=NEXT_NAMES)


def _read(keys: Keys, feed_forward: FeedForwardConfig) -> ModelConfig:
    for unused in UNUSED:
        keys.get(unused)
    keys.refuse("attn_output_gate", True)
    bias, norm = keys.flag("attention_bias"), replace(read_norm(keys), offset=1.0)
    attention = replace(
        read_attention(keys, share=0.25, head_dim=256),
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorm(norm),
        output_gate=True,
    )
    model = read_llama(keys, attention=attention, feed_forward=feed_forward)
    every = keys.size("full_attention_interval", 4)
    kinds = kinds_of(keys, model.num_layers, lambda i: (i + 1) % every == 0)
    return replace(model, layers=with_states(model.layers, kinds, _delta_net(keys)), norm=norm, names=NAMES)


def _delta_net(keys: Keys) -> DeltaNet:
    heads, key_heads = keys.size("linear_num_value_heads", 32), keys.size("linear_num_key_heads", 16)
    if heads % key_heads:
        raise CheckpointError(f"{keys.source}: {heads} value heads cannot share {key_heads} key heads evenly")
    return DeltaNet(
        heads,
        key_heads,
        keys.size("linear_key_head_dim", 128),
        keys.size("linear_value_head_dim", 128),
        keys.size("linear_conv_kernel_dim", 4),
        read_norm(keys),
    )


def _experts(keys: Keys, normalised: bool) -> ExpertsConfig:
    each = FeedForwardConfig(keys.size("moe_intermediate_size", 512), activation_of(keys))
    count, per_token = keys.size("num_experts", keys.get("num_local_experts")), keys.size("num_experts_per_tok")
    keys.get("num_local_experts")
    shared = replace(each, width=keys.size("shared_expert_intermediate_size", 512))
    return ExpertsConfig(count, each, RouterConfig(per_token, normalised=normalised), shared, shared_gate=True)
