"""Settings of experts."""

from typing import Any, Final

from rekindle.formats.checkpoints.gguf.architecture import FileMetadata
from rekindle.formats.checkpoints.gguf.architectures.attention import attention_bias, sections, windows

SOFTMAX: Final = 1
SIGMOID: Final = 2
"""Values of "expert_gating_func"."""


def local_experts(metadata: FileMetadata) -> dict[str, Any]:
    """Return the numbers of experts, and of those per token."""
    keys = metadata.keys
    return {"num_local_experts": keys.get("expert_count"), "num_experts_per_tok": keys.get("expert_used_count")}


def routed(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of experts after dense layers."""
    keys = metadata.keys
    return {
        "num_hidden_layers": metadata.num_layers,
        "n_routed_experts": keys.get("expert_count"),
        "n_shared_experts": keys.get("expert_shared_count", 0),
        "num_experts_per_tok": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "first_k_dense_replace": keys.get("leading_dense_block_count", 0),
        "n_group": keys.get("expert_group_count") or 1,
        "topk_group": keys.get("expert_group_used_count") or 1,
        "norm_topk_prob": keys.flag("expert_weights_norm"),
        "routed_scaling_factor": keys.number("expert_weights_scale", 0.0) or 1.0,
    }


def corrected(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of experts chosen by sigmoids with a correction, after dense layers."""
    metadata.keys.refuse("expert_gating_func", SIGMOID)
    return routed(metadata)


def qwen2_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Qwen2 with experts."""
    width = metadata.file.shapes.get("blk.0.ffn_down_shexp.weight", (None,))[-1]
    shared = metadata.keys.get("expert_shared_feed_forward_length", width)
    extra = {"shared_expert_intermediate_size": shared, "qkv_bias": metadata.attention_bias}
    return _qwen_moe(metadata, is_normalised=False) | extra


def qwen3_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Qwen3 with experts."""
    return _qwen_moe(metadata, is_normalised=True) | attention_bias(metadata)


def qwen3_vl_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of the text model of a Qwen3-VL with experts."""
    return sections(metadata) | qwen3_moe(metadata)


def _qwen_moe(metadata: FileMetadata, is_normalised: bool) -> dict[str, Any]:
    width = metadata.file.shapes.get("blk.0.ffn_down_exps.weight", (None,))[-1]
    return local_experts(metadata) | {
        "moe_intermediate_size": metadata.keys.get("expert_feed_forward_length", width),
        "norm_topk_prob": metadata.keys.flag("expert_weights_norm", is_normalised),
    }


def glm4_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a GLM-4.5 or a Solar Open."""
    has_norm = metadata.has("attn_q_norm.weight")
    return corrected(metadata) | attention_bias(metadata) | {"use_qk_norm": has_norm}


def dots1(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a dots.llm1. Files do not contain its windows."""
    return corrected(metadata) | attention_bias(metadata) | {"sliding_window": None}


def exaone_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a K-EXAONE."""
    settings = corrected(metadata) | windows(metadata, period=4)
    shared = settings.pop("n_shared_experts")
    metadata.keys.refuse("expert_shared_feed_forward_length", shared * settings["moe_intermediate_size"])
    return settings | {"num_experts": settings.pop("n_routed_experts"), "num_shared_experts": shared}


def afmoe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Trinity. llama.cpp always scales its embeddings."""
    keys = metadata.keys
    keys.refuse("expert_gating_func", SIGMOID)
    return windows(metadata, period=4) | {
        "num_experts": keys.get("expert_count"),
        "num_experts_per_tok": keys.get("expert_used_count"),
        "num_shared_experts": keys.get("expert_shared_count", 0),
        "num_dense_layers": keys.get("leading_dense_block_count", 0),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "route_norm": keys.flag("expert_weights_norm", True),
        "route_scale": keys.number("expert_weights_scale", 0.0) or 1.0,
        "mup_enabled": True,
    }


def hunyuan_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Hunyuan with experts. Its shared layer is as wide as an expert."""
    keys = metadata.keys
    keys.refuse("expert_shared_feed_forward_length", keys.get("feed_forward_length"))
    return attention_bias(metadata) | {
        "num_experts": keys.get("expert_count"),
        "moe_topk": keys.get("expert_used_count"),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "num_shared_expert": keys.get("expert_shared_count", 1),
    }


def minimax_m2(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a MiniMax-M2."""
    metadata.keys.refuse("expert_gating_func", SIGMOID)
    return local_experts(metadata)


def ernie_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of an Ernie 4.5 with experts."""
    keys = metadata.keys
    return {
        "use_bias": metadata.attention_bias,
        "moe_k": keys.get("expert_used_count"),
        "moe_num_experts": keys.get("expert_count"),
        "moe_num_shared_experts": keys.get("expert_shared_count", 0),
        "moe_intermediate_size": keys.get("expert_feed_forward_length"),
        "moe_layer_start_index": keys.get("leading_dense_block_count", 0),
        "moe_layer_interval": keys.get("interleave_moe_layer_step", 1),
    }


def phimoe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Phi-3.5-MoE. Files do not contain the tolerance of its router."""
    keys = metadata.keys
    extra = {"lm_head_bias": "output.bias" in metadata.file.shapes}
    window = {"sliding_window": keys.get("attention.sliding_window") or None}
    return local_experts(metadata) | attention_bias(metadata) | window | extra
