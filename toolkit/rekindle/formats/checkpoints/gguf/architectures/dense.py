"""Settings of architectures with few of their own, most of them dense."""

from typing import Any

from rekindle.core.errors import UnsupportedModel
from rekindle.formats.checkpoints.gguf.architecture import FileMetadata
from rekindle.formats.checkpoints.gguf.architectures.attention import attention_bias, biases, windows
from rekindle.formats.checkpoints.gguf.architectures.experts import local_experts


def olmo(metadata: FileMetadata) -> dict[str, Any]:
    """Distinguish OLMo 3 from OLMo 2 by its sliding window."""
    if metadata.keys.get("attention.sliding_window"):
        return {"model_type": "olmo3"} | windows(metadata, period=4) | attention_bias(metadata)
    return attention_bias(metadata)


def olmo1(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of an OLMo 1. The epsilon of its norms is no setting."""
    metadata.keys.refuse("attention.layer_norm_epsilon", 1e-5)
    clip = metadata.keys.number("attention.clamp_kqv", 0.0) or None
    return attention_bias(metadata) | {"clip_qkv": clip, "layer_norm_eps": None}


def granite(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Granite."""
    keys = metadata.keys
    if not keys.flag("rope.scaling.finetuned", True):
        raise UnsupportedModel(f"{keys.source}: a Granite without positions (rope.scaling.finetuned) is not supported")
    return biases(metadata) | granite_scales(metadata)


def granite_scales(metadata: FileMetadata) -> dict[str, Any]:
    """Return the factors of a Granite. Absent factors are 1."""
    keys = metadata.keys
    return {
        "attention_multiplier": keys.number("attention.scale", 0.0) or metadata.head_dim**-0.5,
        "embedding_multiplier": keys.number("embedding_scale", 1.0) or 1.0,
        "residual_multiplier": keys.number("residual_scale", 1.0) or 1.0,
        "logits_scaling": keys.number("logit_scale", 1.0) or 1.0,
    }


def granite_moe(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Granite MoE, with or without a shared expert."""
    settings = granite(metadata) | local_experts(metadata)
    shared = metadata.keys.get("expert_shared_feed_forward_length", 0)
    return settings | {"model_type": "granitemoeshared", "shared_intermediate_size": shared} if shared else settings


def cohere(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Command R."""
    extra = {"logit_scale": metadata.keys.number("logit_scale"), "use_qk_norm": metadata.has("attn_q_norm.weight")}
    return attention_bias(metadata) | extra


def cohere2(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Cohere 2."""
    extra = {"logit_scale": metadata.keys.number("logit_scale")}
    return attention_bias(metadata) | windows(metadata, period=4) | extra


def stablelm(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a StableLM."""
    return {
        "use_parallel_residual": not metadata.has("ffn_norm.weight"),
        "use_qkv_bias": metadata.attention_bias,
        "qk_layernorm": metadata.has("attn_q_norm.weight"),
    }


def gpt_oss(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a gpt-oss."""
    return local_experts(metadata) | windows(metadata, period=2) | attention_bias(metadata)


def gpt_neox(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a GPT-NeoX."""
    parallel = metadata.keys.flag("use_parallel_residual", True)
    return {"use_parallel_residual": parallel, "attention_bias": metadata.attention_bias}
