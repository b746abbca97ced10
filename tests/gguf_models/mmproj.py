"""Vision towers in files of their own, by the rules of llama.cpp's converter, which are not read from our reader."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

Change = Callable[[gguf.GGUFWriter], None]


def write_mmproj(
    directory: Path, path: Path, change: Change | None = None, kinds: Mapping[str, str] | None = None
) -> Path:
    """Write the tower of an Idefics3 or a SmolVLM in float32.

    Args:
        change: of the writer, before the file is written.
        kinds: the kinds of numbers of some tensors, by their names in the file.
    """
    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.MMPROJ])
    _write_metadata(writer, config["vision_config"], config["text_config"]["hidden_size"], config["scale_factor"])
    library = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, config["vision_config"]["num_hidden_layers"])
    for name, values in load_file(directory / "model.safetensors").items():
        stem, _, kind = name.rpartition(".")
        if "vision_model" not in name and "connector" not in name:
            continue
        own = f"{library.get_name(stem)}.{kind}"
        if kinds is not None and own in kinds:
            quantized = gguf.GGMLQuantizationType[kinds[own]]
            writer.add_tensor(own, gguf.quantize(values, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(own, np.ascontiguousarray(values, np.float32))
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], output_size: int, scale_factor: int) -> None:
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(output_size)
    writer.add_vision_image_size(config["image_size"])
    writer.add_vision_patch_size(config["patch_size"])
    writer.add_vision_embedding_length(config["hidden_size"])
    writer.add_vision_feed_forward_length(config["intermediate_size"])
    writer.add_vision_block_count(config["num_hidden_layers"])
    writer.add_vision_head_count(config["num_attention_heads"])
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_clip_projector_type(gguf.VisionProjectorType.IDEFICS3)
    writer.add_vision_attention_layernorm_eps(config["layer_norm_eps"])
    writer.add_vision_projector_scale_factor(scale_factor)
    writer.add_vision_use_gelu(True)
    writer.add_vision_preproc_image_size(96)
