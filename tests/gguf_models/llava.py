"""Towers of LLaVA, LLaVA-NeXT and Granite Vision, by the rules of llama.cpp's older converter."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.gguf_models.files import finish

_NAMES: Final = (
    ("multi_modal_projector.linear_1", "mm.0"),
    ("multi_modal_projector.linear_2", "mm.2"),
    ("image_newline", "model.image_newline"),
    ("vision_tower.", "v."),
    ("encoder.layers", "blk"),
    ("embeddings.", ""),
    ("_proj", ""),
    ("self_attn.", "attn_"),
    ("layer_norm", "ln"),
    ("mlp.fc1", "ffn_down"),  # exchanged in all of its files
    ("mlp.fc2", "ffn_up"),
    ("embedding", "embd"),
    ("pre_layrnorm", "pre_ln"),
)


def write_llava_mmproj(directory: Path, path: Path, change: Callable[[gguf.GGUFWriter], None] | None = None) -> Path:
    """Write a tower, with its projector and the convolution over patches in float16, and the rest in float32.

    Args:
        change: of the writer, before the file is written.
    """
    config = json.loads((directory / "config.json").read_text())
    processor = json.loads((directory / "preprocessor_config.json").read_text())
    tower, layers = config["vision_config"], config["vision_feature_layer"]
    count = tower["num_hidden_layers"]
    features = [each % (count + 1) for each in (layers if isinstance(layers, list) else [layers])]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.MMPROJ])
    for part, has_part in (("text_encoder", False), ("vision_encoder", True), ("llava_projector", True)):
        writer.add_bool(f"clip.has_{part}", has_part)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_description("image encoder for LLaVA")
    writer.add_clip_projector_type("mlp")
    writer.add_vision_image_size(tower["image_size"])
    writer.add_vision_patch_size(tower["patch_size"])
    writer.add_vision_embedding_length(tower["hidden_size"])
    writer.add_vision_feed_forward_length(tower["intermediate_size"])
    writer.add_vision_projection_dim(tower.get("projection_dim", 0))
    writer.add_vision_head_count(tower["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(tower["layer_norm_eps"])
    writer.add_vision_block_count(max(features))
    if sizes := config.get("image_grid_pinpoints"):
        writer.add_array("clip.vision.image_grid_pinpoints", [side for size in sizes for side in size])
        writer.add_string("clip.vision.mm_patch_merge_type", "spatial_unpad")
    writer.add_array("clip.vision.feature_layer", features)
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    writer.add_vision_use_gelu(tower["hidden_act"] == "gelu")
    for name, values in load_file(directory / "model.safetensors").items():
        own = _own(name.removeprefix("model."), max(features))
        if own is not None:
            writer.add_tensor(own, np.ascontiguousarray(values, _kind(own, values)))
    if change is not None:
        change(writer)
    finish(writer)
    return path


def _own(name: str, layers: int) -> str | None:
    """Return a tensor's name in the file; None for one that is left out."""
    if not name.startswith(("vision_tower.", "multi_modal_projector.", "image_newline")) or ".post_layernorm." in name:
        return None
    for theirs, ours in _NAMES:
        name = name.replace(theirs, ours)
    _, _, place = name.partition("blk.")
    return None if place and int(place.partition(".")[0]) >= layers else name


def _kind(name: str, values: Any) -> type[np.floating[Any]]:
    return np.float16 if values.ndim == 4 or (name.startswith("mm.") and values.ndim == 2) else np.float32
