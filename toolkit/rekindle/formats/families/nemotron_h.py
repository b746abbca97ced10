"""Nemotron-H and Nemotron 3: layers of one part each: Mamba-2, attention, or a feed-forward layer."""

from dataclasses import replace
from typing import Final

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import (
    AttentionConfig,
    ExpertsConfig,
    FeedForwardConfig,
    LayerConfig,
    Mamba2,
    ModelConfig,
    Names,
)
from rekindle.formats.families.experts import corrected_router
from rekindle.formats.families.hybrid import checked_mamba, read_steps
from rekindle.formats.families.keys import Keys
from rekindle.formats.families.reading import activation_of, read_heads, read_norm

NAMES: Final = Names(
    embedding="backbone.embeddings",
    layers="backbone.layers",
    norm="backbone.norm_f",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    out="mixer.o_proj",
    gate_up=("mixer.up_proj",),
    down="mixer.down_proj",
    router="mixer.gate",
    correction="mixer.gate.e_score_correction_bias",
    expert_gate_up=("mixer.experts.{expert}.up_proj.weight",),
    expert_down="mixer.experts.{expert}.down_proj.weight",
    shared_gate_up=("mixer.shared_experts.up_proj",),
    shared_down="mixer.shared_experts.down_proj",
    before_attention="norm",
    before_mlp="norm",
    state="mixer",
)
LETTERS: Final = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
KINDS: Final = {**{kind: kind for kind in LETTERS.values()}, "mamba": "linear_attention", "attention": "full_attention"}
UNUSED: Final = (
    "attention_bias",
    "chunk_size",
    "expand",
    "hybrid_override_pattern",
    "mamba_chunk_size",
    "mamba_expand",
    "mamba_proj_bias",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "n_shared_experts",
    "norm_eps",
    "num_hidden_layers",
    "num_logits_to_keep",
    "num_nextn_predict_layers",
    "partial_rotary_factor",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "time_step_floor",
    "time_step_max",
    "time_step_min",
    "use_mamba_kernels",
)
"""Keys without an effect in transformers' code: of the training, of kernels, of prediction of several tokens."""


def read(keys: Keys) -> ModelConfig:
    """Read a Nemotron-H. Attention has no positions and no biases."""
    for unused in UNUSED:
        keys.get(unused)
    norm, hidden = read_norm(keys, "layer_norm_epsilon", 1e-5), keys.size("hidden_size")
    mamba, attention = _mamba(keys), _attention(keys)
    dense = FeedForwardConfig(
        keys.size("intermediate_size", 21504),
        activation_of(keys, "mlp_hidden_act", "relu2"),
        gated=False,
        bias=keys.flag("mlp_bias"),
    )
    experts = _experts(keys, dense)
    parts = {
        "linear_attention": LayerConfig(None, None, state=replace(mamba, norm=norm)),
        "full_attention": LayerConfig(attention, None),
        "mlp": LayerConfig(None, dense),
        "moe": LayerConfig(None, experts),
    }
    return ModelConfig(
        family="nemotron_h",
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        max_context=keys.size("max_position_embeddings"),
        layers=tuple(parts[kind] for kind in _kinds(keys)),
        norm=norm,
        tied_embeddings=keys.flag("tie_word_embeddings"),
        names=NAMES,
    )


def _kinds(keys: Keys) -> list[str]:
    pattern = keys.get("hybrid_override_pattern", "")
    names = keys.get("layers_block_type", keys.get("layer_types"))
    names = [LETTERS.get(letter, letter) for letter in pattern] if names is None else names
    for kind in set(names) - KINDS.keys():
        raise UnsupportedModel(f"{keys.source}: layers of type {kind!r} are not supported in this family")
    if not names:
        raise keys.wrong("layers_block_type", "must name the layers", names)
    return [KINDS[kind] for kind in names]


def _attention(keys: Keys) -> AttentionConfig:
    return read_heads(keys, head_dim=keys.size("attention_head_dim", 128), kv_heads=8)


def _mamba(keys: Keys) -> Mamba2:
    """Read the Mamba-2. Older files have other names of keys."""
    keys.refuse("mamba_hidden_act", "silu")
    bias, convolution = keys.flag("use_bias"), keys.flag("mamba_conv_bias", True)
    return checked_mamba(
        keys,
        Mamba2(
            heads=keys.size("mamba_num_heads", 128),
            groups=keys.size("n_groups", keys.get("mamba_n_groups", 8)),
            head_size=keys.size("mamba_head_dim", 64),
            state_size=keys.size("ssm_state_size", 128),
            taps=keys.size("conv_kernel", keys.get("mamba_d_conv", 4)),
            bias=bias,
            out_bias=bias,
            convolution_bias=keys.flag("use_conv_bias", convolution),
            steps=read_steps(keys),
        ),
    )


def _experts(keys: Keys, dense: FeedForwardConfig) -> ExpertsConfig:
    """Read the experts, of tokens or of a smaller projection."""
    count = keys.size("n_routed_experts", keys.get("num_local_experts", 8))
    latent = None if keys.get("moe_latent_size") is None else keys.size("moe_latent_size")
    if latent is not None:
        keys.refuse("mlp_bias", False)
    each = replace(dense, width=keys.size("moe_intermediate_size", 7688), bias=False)
    shared = replace(dense, width=keys.size("moe_shared_expert_intermediate_size", 7688))
    return ExpertsConfig(count, each, corrected_router(keys, per_token=2), shared, latent=latent)
