"""LFM2: gated short convolutions in most layers, and attention in the rest, with or without experts."""

from dataclasses import replace

from rekindle.core.models.config import (
    ExpertsConfig,
    FeedForwardConfig,
    HeadNorm,
    LayerConfig,
    ModelConfig,
    Names,
    RouterConfig,
    ShortConvolution,
)
from rekindle.formats.families.hybrid import kinds_of, with_states
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import read_attention, read_llama, read_norm

NAMES = Names(
    norm="model.embedding_norm",
    out="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    before_attention="operator_norm",
    before_mlp="ffn_norm",
    state="conv",
    convolution="conv",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    router="feed_forward.gate",
    correction="feed_forward.expert_bias",
    expert_gate_up=("feed_forward.experts.{expert}.w1.weight", "feed_forward.experts.{expert}.w3.weight"),
    expert_down="feed_forward.experts.{expert}.w2.weight",
)
UNUSED = (
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "rms_norm_eps",
)
"""Keys of the first files: other names of sizes, and settings of the training."""


def read(keys: Keys) -> ModelConfig:
    """Read an LFM2. The width of its feed-forward layers is derived from `intermediate_size`."""
    width = keys.size("block_ff_dim", keys.get("intermediate_size"))
    if keys.flag("block_auto_adjust_ff_dim", True):
        multiple = keys.size("block_multiple_of", 256)
        width = int(keys.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = -(-width // multiple) * multiple
    else:
        for unused in ("block_multiple_of", "block_ffn_dim_multiplier"):
            keys.get(unused)
    return _read(keys, width)


def read_moe(keys: Keys) -> ModelConfig:
    """Read an LFM2 with experts, except in the first layers."""
    model = _read(keys, keys.size("intermediate_size", 7168))
    router = RouterConfig(
        keys.size("num_experts_per_tok", 4),
        scores="sigmoid",
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.number("routed_scaling_factor", 1.0),
        correction=keys.flag("use_expert_bias", True),
        eps=1e-6,
    )
    each = FeedForwardConfig(keys.size("moe_intermediate_size", 1792))
    experts = ExpertsConfig(keys.size("num_experts", 32), each, router)
    dense = keys.get("num_dense_layers", 2)
    layers = (layer if i < dense else replace(layer, feed_forward=experts) for i, layer in enumerate(model.layers))
    return replace(model, layers=tuple(layers))


def _read(keys: Keys, width: int) -> ModelConfig:
    for unused in UNUSED:
        keys.get(unused)
    keys.refuse("block_use_swiglu", True)
    keys.refuse("use_pos_enc", True)
    norm = read_norm(keys, "norm_eps", 1e-5)
    attention = replace(read_attention(keys, theta=1_000_000.0), head_norm=HeadNorm(norm))
    model = read_llama(keys, attention=attention, feed_forward=FeedForwardConfig(width), eps="norm_eps")
    state = ShortConvolution(model.hidden_size, keys.size("conv_L_cache", 3), keys.flag("conv_bias"))
    return replace(
        model,
        layers=_layers(keys, model.layers, state),
        norm=norm,
        tied_embeddings=keys.flag("tie_embedding", keys.flag("tie_word_embeddings", True)),
        names=NAMES,
    )


def _layers(keys: Keys, layers: tuple[LayerConfig, ...], state: ShortConvolution) -> tuple[LayerConfig, ...]:
    full = keys.get("full_attn_idxs")
    kinds = kinds_of(keys, len(layers), lambda i: full is None or i in full)
    return with_states(layers, kinds, state)
