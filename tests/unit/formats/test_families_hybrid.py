"""Families with a state in some layers: published configs, in older and newer forms, and malformed ones."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rekindle.assembly.weights.load import load_decoder
from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import DeltaNet, FeedForwardConfig, Mamba2, ModelConfig, ShortConvolution
from rekindle.core.models.decoder import Decoder
from rekindle.formats.checkpoints.open import open_checkpoint
from rekindle.formats.families.registry import parse_config

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
LFM2 = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": True,
    "block_dim": 64,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-5,
    "block_out_init_scale": 1.0,
    "block_use_swiglu": True,
    "block_use_xavier_init": True,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 64,
    "conv_dim_out": 64,
    "conv_use_xavier_init": True,
    "full_attn_idxs": [2],
    "norm_eps": 1e-5,
    "num_heads": 8,
    "rope_theta": 1e6,
    "use_pos_enc": True,
}
QWEN3_5 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "image_token_id": 248056,
    "language_model_only": False,
    "vision_config": {"depth": 27},
    "vision_start_token_id": 248053,
    "text_config": {
        **COMMON,
        "model_type": "qwen3_5_text",
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "mamba_ssm_dtype": "float32",
        "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e7,
            "rope_type": "default",
        },
    },
}
GRANITE4 = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "init_method": "mup",
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "logits_scaling": 6,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
    "mamba_proj_bias": False,
    "normalization_function": "rmsnorm",
    "num_experts_per_tok": 6,
    "num_local_experts": 64,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rope_theta": 10000,
    "shared_intermediate_size": 1024,
}
NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "attention_bias": False,
    "attention_head_dim": 16,
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "hybrid_override_pattern": "M-*E",
    "layer_norm_epsilon": 1e-5,
    "mamba_head_dim": 8,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 16,
    "mamba_proj_bias": False,
    "mamba_ssm_cache_dtype": "float32",
    "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "n_group": 1,
    "n_groups": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_eps": 1e-5,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_logits_to_keep": 1,
    "partial_rotary_factor": 1.0,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "ssm_state_size": 128,
    "time_step_floor": 0.0001,
    "time_step_limit": [0.0, math.inf],
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "topk_group": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "use_mamba_kernels": True,
}
FALCON_H1 = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    "attention_in_multiplier": 1.0,
    "embedding_multiplier": 5.656854249492381,
    "key_multiplier": 0.390625,
    "mamba_d_head": 64,
    "mamba_d_ssm": 1536,
    "mamba_expand": 2,
    "mamba_n_heads": 24,
    "mamba_norm_before_gate": False,
    "mamba_rms_norm": False,
    "mamba_use_mlp": True,
    "mlp_bias": False,
    "mlp_expansion_factor": 8,
    "mlp_multipliers": [0.88, 0.59],
    "num_logits_to_keep": 1,
    "projectors_bias": False,
    "rope_theta": 1e11,
    "ssm_multipliers": [0.35, 0.25, 0.18, 0.5, 0.35],
}
BAMBA = {
    "architectures": ["BambaForCausalLM"],
    "model_type": "bamba",
    "attn_layer_indices": [2],
    "attn_rotary_emb": 4,
    "mamba_n_heads": 8,
    "num_logits_to_keep": 1,
    "z_loss_coefficient": 0.0,
}


def read(config: dict[str, Any], **changes: Any) -> ModelConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of unknown keys
        return parse_config(COMMON | config | changes, "config.json")


def kinds(config: ModelConfig) -> str:
    """Return a letter for each layer: S for a state, A for attention, B for both, F for neither."""
    return "".join(
        "B" if layer.attention and layer.state else "A" if layer.attention else "S" if layer.state else "F"
        for layer in config.layers
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LFM2, "SSAS"),
        (QWEN3_5, "SSSA"),
        (GRANITE4, "SSAS"),
        (NEMOTRON_H, "SFAF"),
        (FALCON_H1, "BBBB"),
        (BAMBA, "SSAS"),
    ],
)
def test_published_configs_open_without_a_warning(config: dict[str, Any], expected: str) -> None:
    assert kinds(read(config)) == expected


def test_the_width_of_an_lfm2_is_derived_unless_the_file_says_otherwise() -> None:
    def width(**changes: Any) -> int:
        feed_forward = read(LFM2, **changes).layers[0].feed_forward
        assert isinstance(feed_forward, FeedForwardConfig)
        return feed_forward.width

    assert width() == 8192
    assert width(block_ff_dim=6656) == 4608
    assert width(block_ff_dim=10752, block_auto_adjust_ff_dim=False) == 10752
    newer = {"full_attn_idxs": None, "layer_types": ["conv", "conv", "full_attention", "conv"]}
    assert read(LFM2, **newer) == read(LFM2)
    assert read(LFM2).layers[0].state == ShortConvolution(64, 3)
    assert read(LFM2).tied_embeddings


def test_an_absent_key_of_a_qwen3_5_has_the_default_of_its_class() -> None:
    text = {key: value for key, value in COMMON.items() if key != "hidden_size"} | {"model_type": "qwen3_5_text"}
    config = read({**QWEN3_5, "text_config": text})
    assert config.hidden_size == 4096
    assert config.attentions[0].rope is not None
    assert (config.attentions[0].head_dim, config.attentions[0].rope.dims) == (256, 64)
    assert config.layers[0].state == DeltaNet(32, 16, 128, 128, 4, replace(config.norm, offset=0.0))


def test_older_and_newer_names_of_layers_are_the_same_model() -> None:
    types = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    assert read(GRANITE4, layer_types=types) == read(GRANITE4)
    newer_names = {"hybrid_override_pattern": None, "layers_block_type": ["mamba", "mlp", "attention", "moe"]}
    assert read(NEMOTRON_H, **newer_names) == read(NEMOTRON_H)


@pytest.mark.parametrize(("limit", "steps"), [([0.0, {"__float__": "Infinity"}], None), ([0.001, 0.1], (0.001, 0.1))])
def test_steps_are_bounded_where_the_config_says_so(limit: list[Any], steps: tuple[float, float] | None) -> None:
    state = read(NEMOTRON_H, time_step_limit=limit).layers[0].state
    assert isinstance(state, Mamba2)
    assert state.steps == steps


@pytest.mark.parametrize(
    ("config", "changes", "error", "message"),
    [
        (LFM2, {"layer_types": ["conv"]}, CheckpointError, "layer_types must name 4 layers, got 1"),
        (LFM2, {"layer_types": ["conv", "spiral"] * 2}, UnsupportedModel, "layers of type 'spiral' are not supported"),
        (LFM2, {"use_pos_enc": False}, UnsupportedModel, "use_pos_enc False is not supported"),
        (GRANITE4, {"mamba_n_groups": 3}, CheckpointError, "8 Mamba heads cannot share 3 groups evenly"),
        (GRANITE4, {"position_embedding_type": "alibi"}, UnsupportedModel, "position_embedding_type 'alibi'"),
        (NEMOTRON_H, {"hybrid_override_pattern": "M?"}, UnsupportedModel, r"layers of type '\?' are not supported"),
        (NEMOTRON_H, {"hybrid_override_pattern": None}, CheckpointError, "layers_block_type must name the layers"),
        (NEMOTRON_H, {"moe_latent_size": 16, "mlp_bias": True}, UnsupportedModel, "mlp_bias True is not supported"),
        (NEMOTRON_H, {"time_step_limit": 3}, CheckpointError, "time_step_limit must be a list of two numbers, got 3"),
        (FALCON_H1, {"attention_bias": True}, UnsupportedModel, "attention_bias True is not supported"),
        (FALCON_H1, {"ssm_multipliers": [1.0]}, CheckpointError, r"ssm_multipliers must have 5 numbers, got \[1\.0\]"),
        ({"model_type": "qwen3_5_text", "linear_num_key_heads": 5}, {}, CheckpointError, "32 value heads cannot share"),
    ],
)
def test_what_a_config_cannot_mean_is_said(
    config: dict[str, Any], changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(config, **changes)


def test_a_multiplier_of_embeddings_is_exact_and_rounded_to_weights_in_gemmas_alone(families: Path) -> None:
    def embedded(decoder: Decoder) -> np.ndarray[Any, Any]:
        tokens = jnp.asarray([7, 9], jnp.int32)
        x = decoder._embed(tokens, jnp.asarray([0, 1], jnp.int32))
        factors: np.ndarray[Any, Any] = np.asarray(x) / np.asarray(decoder.embedding(tokens))
        return factors

    for model, factor in (("falcon-h1", 2.2360679), ("gemma", 2.234375)):
        checkpoint = open_checkpoint(families / model)
        config = replace(checkpoint.config, embedding_multiplier=5**0.5)
        decoder = load_decoder(config, checkpoint.tensors, jnp.dtype("bfloat16"))
        np.testing.assert_allclose(embedded(decoder), factor, rtol=1e-6)
