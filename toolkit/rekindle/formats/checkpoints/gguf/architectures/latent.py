"""Settings of latent attention, and of the experts in such models."""

from typing import Any

from rekindle.formats.checkpoints.gguf.architecture import FileMetadata
from rekindle.formats.checkpoints.gguf.architectures.experts import SIGMOID, SOFTMAX, routed


def deepseek(metadata: FileMetadata) -> dict[str, Any]:
    """Distinguish DeepSeek-V3 from V2 by the gating function, or by the score correction in files without it.

    GLM-4.7-Flash is stored as a DeepSeek-V3.
    """
    keys = metadata.keys
    has_correction = any(name.endswith(".exp_probs_b.bias") for name in metadata.file.shapes)
    scores = keys.get("expert_gating_func") or (SIGMOID if has_correction else SOFTMAX)
    keys.refuse("expert_gating_func", 0, SOFTMAX, SIGMOID)
    settings = latent(metadata) | routed(metadata)
    if scores == SIGMOID:
        return settings | {"model_type": "deepseek_v3"}
    return settings | {"topk_method": "group_limited_greedy" if settings["n_group"] > 1 else "greedy"}


def mistral4(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Mistral Small 4."""
    metadata.keys.refuse("expert_gating_func", 0, SOFTMAX)
    return latent(metadata) | routed(metadata)


def latent(metadata: FileMetadata) -> dict[str, Any]:
    """Return the sizes of latent attention. Older files store the sizes of whole heads under the general keys."""
    keys = metadata.keys
    whole_head = keys.get("attention.key_length"), keys.get("attention.value_length")
    rotary_size = keys.size("rope.dimension_count")
    key = keys.size("attention.key_length_mla", whole_head[0])
    if key <= rotary_size:
        raise keys.wrong(
            "attention.key_length_mla", f"must be more than {rotary_size}, the size of the rotary part", key
        )
    return {
        "kv_lora_rank": keys.size("attention.kv_lora_rank"),
        "q_lora_rank": keys.get("attention.q_lora_rank"),
        "qk_nope_head_dim": key - rotary_size,
        "qk_rope_head_dim": rotary_size,
        "v_head_dim": keys.size("attention.value_length_mla", whole_head[1]),
    }
