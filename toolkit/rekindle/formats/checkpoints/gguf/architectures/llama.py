"""Settings of Llamas, and of models stored as Llamas."""

from typing import Any, Final

from rekindle.formats.checkpoints.gguf.architecture import FileMetadata
from rekindle.formats.checkpoints.gguf.architectures.attention import attention_bias, biases, window
from rekindle.formats.checkpoints.gguf.architectures.experts import local_experts

_CHUNK: Final = 8192
"""Tokens in a chunk of a Llama 4: a constant of llama.cpp, absent from files."""
_MAVERICK: Final = 128
"""Experts of Llama 4 Maverick, without a norm of queries and keys."""


def llama(metadata: FileMetadata) -> dict[str, Any]:
    """Distinguish Mixtral, Mistral and Llama. llama.cpp uses one architecture name for all three."""
    if metadata.keys.get("expert_count"):
        metadata.keys.refuse("expert_weights_norm", True)
        return {"model_type": "mixtral"} | local_experts(metadata) | window(metadata)
    if metadata.keys.get("attention.sliding_window"):
        return {"model_type": "mistral"} | window(metadata)
    return biases(metadata)


def llama4(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of a Llama 4, some of them constants of llama.cpp. Every fourth layer has no positions."""
    keys = metadata.keys
    keys.refuse("attention.sliding_window", _CHUNK)
    keys.refuse("attention.sliding_window_pattern", 4)
    return (
        local_experts(metadata)
        | attention_bias(metadata)
        | {
            "intermediate_size": keys.get("expert_feed_forward_length"),
            "intermediate_size_mlp": keys.get("feed_forward_length"),
            "interleave_moe_layer_step": keys.size("interleave_moe_layer_step", 1),
            "attention_chunk_size": _CHUNK,
            "use_qk_norm": keys.get("expert_count") != _MAVERICK,
        }
    )
