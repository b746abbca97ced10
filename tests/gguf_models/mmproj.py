"""Vision towers in files of their own, by the rules of llama.cpp's converter, which are not read from our reader."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.gguf_models.files import finish

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
    writer = _writer_of(path)
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
    return _write(writer, path)


def _writer_of(path: Path) -> gguf.GGUFWriter:
    """Return a writer of a tower in float32."""
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.MMPROJ])
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_clip_has_vision_encoder(True)
    return writer


def _write(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    finish(writer)
    return path


def write_qwen_mmproj(directory: Path, path: Path) -> Path:
    """Write the tower of a Qwen in float32: two weights of a patch, and queries, keys and values apart in Qwen2.5.

    The converter writes no sizes of pictures and no size of windows.
    """
    config = json.loads((directory / "config.json").read_text())
    processor = json.loads((directory / "preprocessor_config.json").read_text())
    tower, is_old = config["vision_config"], config["model_type"] in ("qwen2_vl", "qwen2_5_vl")
    text = config.get("text_config", config)
    hidden = tower.get("embed_dim", tower["hidden_size"])
    writer = _writer_of(path)
    writer.add_vision_projection_dim(text["hidden_size"])
    rows = tower.get("num_position_embeddings")
    writer.add_vision_image_size(560 if rows is None else int(rows**0.5 * tower["patch_size"]))
    writer.add_vision_patch_size(tower["patch_size"])
    writer.add_vision_embedding_length(hidden)
    writer.add_vision_feed_forward_length(tower.get("intermediate_size", tower["hidden_size"]))
    writer.add_vision_block_count(tower["depth"])
    writer.add_vision_head_count(tower["num_heads"])
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    writer.add_vision_attention_layernorm_eps((config if is_old else text).get("rms_norm_eps", 1e-6))
    if config["model_type"] == "qwen2_5_vl":
        writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN25VL)
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(tower["fullatt_block_indexes"][0] + 1)
    elif is_old:
        writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN2VL)
    else:
        taps = tower.get("deepstack_visual_indexes") or []
        writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL)
        writer.add_vision_use_gelu(True)
        writer.add_vision_spatial_merge_size(tower["spatial_merge_size"])
        writer.add_vision_is_deepstack_layers([layer in taps for layer in range(tower["depth"])])
    library = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(3, tower["depth"]))
    for name, values in load_file(directory / "model.safetensors").items():
        stem, _, kind = name.removeprefix("model.").rpartition(".")
        if stem.startswith("visual."):
            for own, part in _qwen_parts(stem, kind, values, tower, library, is_old=is_old):
                writer.add_tensor(own, np.ascontiguousarray(part, np.float32))
    return _write(writer, path)


def write_further_mmproj(directory: Path, path: Path) -> Path:
    """Write the tower of a Pixtral, a Mistral 3, an InternVL or an LFM2-VL in float32."""
    config = json.loads((directory / "config.json").read_text())
    processor = json.loads((directory / "preprocessor_config.json").read_text())
    tower, kind = config["vision_config"], config["model_type"]
    writer = _writer_of(path)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(256 if kind == "lfm2_vl" else _first(tower["image_size"]))
    writer.add_vision_patch_size(_first(tower["patch_size"]))
    writer.add_vision_embedding_length(tower["hidden_size"])
    writer.add_vision_feed_forward_length(tower["intermediate_size"])
    writer.add_vision_block_count(tower["num_hidden_layers"])
    writer.add_vision_head_count(tower["num_attention_heads"])
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    writer.add_vision_attention_layernorm_eps(tower.get("layer_norm_eps", 1e-5))
    writer.add_vision_use_gelu(True)
    types = {"internvl": gguf.VisionProjectorType.INTERNVL, "lfm2_vl": gguf.VisionProjectorType.LFM2}
    writer.add_clip_projector_type(types.get(kind, gguf.VisionProjectorType.PIXTRAL))
    if kind == "mistral3":
        writer.add_vision_spatial_merge_size(config["spatial_merge_size"])
    if kind in types:
        factor = config["downsample_factor"] if kind == "lfm2_vl" else int(1 / config["downsample_ratio"])
        writer.add_vision_projector_scale_factor(factor)
    for key, bound in (("min_dynamic_patch", "min"), ("max_dynamic_patch", "max")):
        if kind == "internvl" and config.get(key):
            writer.add_uint32(f"clip.vision.preproc_{bound}_tiles", config[key])
    library = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 4)
    for name, values in load_file(directory / "model.safetensors").items():
        if "vision_tower" in name or "projector" in name:
            own, part = _further_part(name.removeprefix("model."), values, tower, kind, library)
            writer.add_tensor(own, np.ascontiguousarray(part, np.float32))
    return _write(writer, path)


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, list) else value)


def _further_part(name: str, values: Any, tower: Mapping[str, Any], kind: str, library: Any) -> tuple[str, Any]:
    """Return the name and the values in a file of a tensor of a tower."""
    if kind == "internvl":
        products = {"layer_norm": "mlp1.0", "linear_1": "mlp1.1", "linear_2": "mlp1.3"}
        stem, _, end = name.rpartition(".")
        part = stem.removeprefix("multi_modal_projector.")
        if part in products:
            return f"mm.model.mlp.{products[part].rpartition('.')[2]}.{end}", values
        if ".lambda_" in name or "position_embedding" in name:
            stem, end = name, "weight"
        if "cls_token" in name:
            return str(library.get_name(f"model.{name}")), values
        return f"{library.get_name(f'model.{stem}')}.{end}", values
    if kind == "lfm2_vl" and "patch_embedding.weight" in name:
        side = tower["patch_size"]
        values = values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    if kind in ("llava", "mistral3") and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = tower["num_attention_heads"]
        values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    stem, _, end = name.rpartition(".")
    return f"{library.get_name(stem)}.{end}", values


def _qwen_parts(
    stem: str, kind: str, values: Any, tower: Mapping[str, Any], library: Any, *, is_old: bool
) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in a file of one of a Qwen's tower."""
    names = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}
    merger = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
    if stem == "visual.patch_embed.proj" and kind == "weight":
        yield from (("v.patch_embd.weight", values[:, :, 0]), ("v.patch_embd.weight.1", values[:, :, 1]))
    elif "deepstack_merger_list" in stem:
        _, _, place, part = stem.split(".")
        yield f"v.deepstack.{tower['deepstack_visual_indexes'][int(place)]}.{names[part]}.{kind}", values
    elif stem.startswith("visual.merger.") and not is_old:
        yield f"{merger[stem.rpartition('.')[2]]}.{kind}", values
    elif is_old and stem.endswith(".qkv"):
        for side, own in zip("qkv", np.split(values, 3), strict=True):
            name = library.get_name(stem.replace("qkv", side))
            yield f"{name}.{kind}", own
    else:
        yield f"{library.get_name(stem)}.{kind}", values


def _write_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], output_size: int, scale_factor: int) -> None:
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


def write_gemma_mmproj(directory: Path, path: Path) -> Path:
    """Write the tower of a Gemma 3 or a Gemma 4 in float32."""
    config = json.loads((directory / "config.json").read_text())
    tower, is_old = config["vision_config"], config["model_type"] == "gemma3"
    writer = _writer_of(path)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(tower["image_size"] if is_old else 224)
    writer.add_vision_patch_size(tower["patch_size"])
    writer.add_vision_embedding_length(tower["hidden_size"])
    writer.add_vision_feed_forward_length(tower["intermediate_size"])
    writer.add_vision_block_count(tower["num_hidden_layers"])
    writer.add_vision_head_count(tower["num_attention_heads"])
    writer.add_vision_image_mean([0.5 * is_old] * 3)
    writer.add_vision_image_std([1 - 0.5 * is_old] * 3)
    writer.add_vision_attention_layernorm_eps(1e-6)
    if is_old:
        writer.add_clip_projector_type(gguf.VisionProjectorType.GEMMA3)
        writer.add_vision_use_gelu(True)
        side = tower["image_size"] // tower["patch_size"]
        if (merge := side // int(config["mm_tokens_per_image"] ** 0.5)) not in (0, 4):
            writer.add_vision_projector_scale_factor(merge)
    else:
        writer.add_clip_vision_projector_type(gguf.VisionProjectorType.GEMMA4V)
    library = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, tower["num_hidden_layers"])
    kinds = (".weight", ".bias", ".input_max", ".input_min", ".output_max", ".output_min")
    for name, values in load_file(directory / "model.safetensors").items():
        if not name.removeprefix("model.").startswith(("vision_tower.", "multi_modal_projector.", "embed_vision.")):
            continue
        own, numbers = _gemma_part(name, values, is_old=is_old)
        stored = library.get_name(own, try_suffixes=kinds)
        assert stored is not None, own
        kind = np.float16 if "input_projection" in own and is_old else np.float32  # in each file
        writer.add_tensor(stored, np.ascontiguousarray(numbers, kind))
    return _write(writer, path)


def _gemma_part(name: str, values: Any, *, is_old: bool) -> tuple[str, Any]:
    """Return a tensor of a Gemma's tower, and its name for the library's table."""
    if is_old:
        name = name.replace("_weight", ".weight")
        return name, values + 1 if "soft_emb_norm" in name else values
    name = name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
    name += ".weight" if name.endswith("position_embedding_table") else ""
    if name.endswith("patch_embedder.input_proj.weight"):
        side = int((values.shape[1] // 3) ** 0.5)
        values = values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    return name, values.reshape(1) if not values.shape else values
