"""Settings of attention in several architectures: biases and sliding windows."""

from typing import Any

from rekindle.formats.checkpoints.gguf.architecture import FileMetadata


def biases(metadata: FileMetadata) -> dict[str, Any]:
    """Return the flags of biases of attention and feed-forward layers."""
    return {"attention_bias": metadata.attention_bias, "mlp_bias": metadata.has("ffn_up.bias")}


def attention_bias(metadata: FileMetadata) -> dict[str, Any]:
    """Return the flag of biases of attention."""
    return {"attention_bias": metadata.attention_bias}


def window(metadata: FileMetadata) -> dict[str, Any]:
    """Return the sliding window for all layers, if there is one."""
    return {"sliding_window": metadata.keys.get("attention.sliding_window") or None}


def windows(metadata: FileMetadata, period: int, window: int = 0) -> dict[str, Any]:
    """Return the sliding window and the types of the layers.

    Args:
        metadata: the file's metadata.
        period: if the file has no pattern, every `period`-th layer uses full attention.
        window: default window in tokens.
    """
    keys = metadata.keys
    window = keys.get("attention.sliding_window", window)
    pattern = keys.get("attention.sliding_window_pattern", period)
    if not isinstance(pattern, list):
        pattern = [not pattern or i % pattern < pattern - 1 for i in range(metadata.num_layers)]
    types = ["sliding_attention" if has_window else "full_attention" for has_window in pattern[: metadata.num_layers]]
    return {"sliding_window": window, "layer_types": types} if window else {"sliding_window": None}


def sections(metadata: FileMetadata) -> dict[str, Any]:
    """Read the keys for images. Text has the same position in each section of a rope, and no features of images."""
    metadata.keys.get("rope.dimension_sections")
    metadata.keys.get("n_deepstack_layers")
    return {}


def qwen3_vl(metadata: FileMetadata) -> dict[str, Any]:
    """Return the settings of the text model of a Qwen3-VL."""
    return sections(metadata) | attention_bias(metadata)
