"""Settings of architectures with a state in some of their layers."""

from typing import Any, Final

from rekindle.formats.checkpoints.gguf.architecture import FileMetadata
from rekindle.formats.checkpoints.gguf.architectures.attention import sections
from rekindle.formats.checkpoints.gguf.architectures.dense import granite_scales
from rekindle.formats.checkpoints.gguf.architectures.experts import SIGMOID, local_experts

_NEMOTRON: Final = {
    "ssm_in.weight": "linear_attention",
    "attn_q.weight": "full_attention",
    "ffn_gate_inp.weight": "moe",
    "ffn_up.weight": "mlp",
}
"""Kinds of layers of a Nemotron-H by a tensor of each."""


def lfm2(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of an LFM2. Files contain the width of its feed-forward layers itself."""
    return _convolutions(metadata) | {"block_auto_adjust_ff_dim": False}


def lfm2_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of an LFM2 with experts."""
    keys = metadata.keys
    keys.refuse("expert_gating_func", SIGMOID)
    return _convolutions(metadata) | {
        "num_experts": keys.get("expert_count"),
        "num_experts_per_tok": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "num_dense_layers": keys.get("leading_dense_block_count", 0),
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
        "routed_scaling_factor": keys.number("expert_weights_scale", 0.0) or 1.0,
        "use_expert_bias": _any(metadata, "exp_probs_b.bias"),
    }


def _convolutions(metadata: FileMetadata) -> dict[str, Any]:
    return _heads(metadata, "conv") | {
        "conv_L_cache": metadata.keys.get("shortconv.l_cache"),
        "conv_bias": _any(metadata, "shortconv.conv.bias"),
        "norm_eps": metadata.keys.number("attention.layer_norm_rms_epsilon"),
    }


def qwen35(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Qwen3.5."""
    return sections(metadata) | _delta_nets(metadata)


def qwen35_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Qwen3.5 with experts."""
    return qwen35(metadata) | _qwen_experts(metadata)


def qwen3_next(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Qwen3-Next."""
    norm_topk = metadata.keys.flag("expert_weights_norm", True)
    return _delta_nets(metadata) | _qwen_experts(metadata) | {"norm_topk_prob": norm_topk}


def _delta_nets(metadata: FileMetadata) -> dict[str, Any]:
    keys = metadata.keys
    keys.get("full_attention_interval")  # the tensors tell the kinds of layers
    heads = keys.size("ssm.time_step_rank")
    return {
        "num_hidden_layers": metadata.num_layers,
        "layer_types": _kinds(metadata, "ssm_a", "linear_attention"),
        "linear_conv_kernel_dim": keys.get("ssm.conv_kernel"),
        "linear_key_head_dim": keys.get("ssm.state_size"),
        "linear_num_key_heads": keys.get("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": keys.size("ssm.inner_size") // heads,
        "attention_bias": _any(metadata, "attn_q.bias"),
    }


def _qwen_experts(metadata: FileMetadata) -> dict[str, Any]:
    keys = metadata.keys
    return local_experts(metadata) | {
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.get("expert_shared_feed_forward_length"),
    }


def granite_hybrid(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Granite 4, or of a Bamba as a Granite 4 with a rope."""
    keys = metadata.keys
    has_rope = keys.flag("rope.scaling.finetuned", True)
    return (
        granite_scales(metadata)
        | _heads(metadata, "mamba")
        | _mamba(metadata)
        | local_experts(metadata)
        | {
            "shared_intermediate_size": keys.get("expert_shared_feed_forward_length", keys.get("feed_forward_length")),
            "num_local_experts": keys.get("expert_count", 0),
            "position_embedding_type": "rope" if has_rope else None,
            "attention_bias": _any(metadata, "attn_q.bias"),
            "mlp_bias": _any(metadata, "ffn_up.bias"),
        }
    )


def falcon_h1(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Falcon-H1. Its multipliers are parts of the tensors, and gates come before norms."""
    return _mamba(metadata) | {
        "mamba_rms_norm": _any(metadata, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "mlp_bias": _any(metadata, "ffn_up.bias"),
        "attention_bias": _any(metadata, "attn_q.bias"),
    }


def _mamba(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Mamba-2."""
    keys = metadata.keys
    heads, inner = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    return {
        "mamba_d_conv": keys.get("ssm.conv_kernel"),
        "mamba_d_state": keys.get("ssm.state_size"),
        "mamba_n_groups": keys.get("ssm.group_count", 1),
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_conv_bias": _any(metadata, "ssm_conv1d.bias"),
        "mamba_proj_bias": _any(metadata, "ssm_in.bias"),
    }


def nemotron_h(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Nemotron-H, whose tensors tell the kinds of its layers."""
    keys, shapes = metadata.keys, metadata.file.shapes
    for unused in ("rope.scaling.finetuned", "feed_forward_length", "expert_shared_count"):
        keys.get(unused)
    kinds = [
        next((kind for part, kind in _NEMOTRON.items() if f"blk.{i}.{part}" in shapes), "none")
        for i in range(metadata.num_layers)
    ]
    width = next((shapes[f"blk.{i}.ffn_up.weight"][0] for i, kind in enumerate(kinds) if kind == "mlp"), None)
    mamba = _mamba(metadata)
    return {
        "layers_block_type": kinds,
        "intermediate_size": width,
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        "num_key_value_heads": _kv_heads(metadata),
        "mamba_num_heads": mamba["mamba_n_heads"],
        "mamba_head_dim": mamba["mamba_d_head"],
        "n_groups": mamba["mamba_n_groups"],
        "ssm_state_size": mamba["mamba_d_state"],
        "conv_kernel": mamba["mamba_d_conv"],
        "use_bias": mamba["mamba_proj_bias"],
        "use_conv_bias": mamba["mamba_conv_bias"],
        "mlp_bias": _any(metadata, "ffn_up.bias"),
    }


def nemotron_h_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Nemotron-H with experts."""
    keys = metadata.keys
    keys.refuse("expert_gating_func", SIGMOID)
    return nemotron_h(metadata) | {
        "n_routed_experts": keys.get("expert_count"),
        "num_experts_per_tok": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": keys.get("expert_shared_feed_forward_length"),
        "moe_latent_size": keys.get("moe_latent_size"),
        "n_group": keys.get("expert_group_count") or 1,
        "topk_group": keys.get("expert_group_used_count") or 1,
        "norm_topk_prob": keys.flag("expert_weights_norm"),
        "routed_scaling_factor": keys.number("expert_weights_scale", 0.0) or 1.0,
    }


def _heads(metadata: FileMetadata, kind: str) -> dict[str, Any]:
    """Return the number of KV heads, and the kinds of layers by their numbers of KV heads: `kind` for none."""
    counts = metadata.keys.get("attention.head_count_kv")[: metadata.num_layers]
    types = ["full_attention" if count else kind for count in counts]
    return {"num_key_value_heads": _kv_heads(metadata), "layer_types": types}


def _kv_heads(metadata: FileMetadata) -> int:
    """Return the number of KV heads of layers with attention; 1 if there are none."""
    counts: list[int] = metadata.keys.get("attention.head_count_kv")
    return max(counts) or 1


def _kinds(metadata: FileMetadata, part: str, kind: str) -> list[str]:
    """Return the kinds of layers: `kind` for blocks with this tensor."""
    shapes = metadata.file.shapes
    return [kind if f"blk.{i}.{part}" in shapes else "full_attention" for i in range(metadata.num_layers)]


def _any(metadata: FileMetadata, part: str) -> bool:
    """Return True if any block has a tensor with this name."""
    return any(f"blk.{i}.{part}" in metadata.file.shapes for i in range(metadata.num_layers))
