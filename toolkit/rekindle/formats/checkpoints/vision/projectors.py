"""Types of projectors in llama.cpp's files of vision towers: settings, and names of tensors."""

from collections.abc import Mapping
from typing import Final

from rekindle.core.models.vision.config import Product, Scaling, VisionConfig
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.checkpoints.vision.llava import llava_images, llava_output_size, llava_settings, llava_stems
from rekindle.formats.checkpoints.vision.projector_type import (
    ProjectorType,
    Settings,
    activation,
    encoder,
    number,
    present,
    step_names,
)


def _idefics3(file: GGUFFile) -> Settings:
    tower, merge = encoder(file, hidden_act=activation(file)), number(file, "projector.scale_factor")
    return present(model_type="idefics3", vision_config=tower, scale_factor=merge)


def _pixtral(file: GGUFFile) -> Settings:
    """Return the settings of a Pixtral, or of a Mistral 3. The converter turns rows of queries for ropes by pairs."""
    is_merged = "mm.patch_merger.weight" in file.shapes
    applied = "silu" if file.metadata.get("clip.use_silu") else "gelu"
    tower = encoder(file, model_type="pixtral", hidden_act=applied, rope_interleave=True)
    tower.pop("layer_norm_eps", None)
    return present(
        model_type="mistral3" if is_merged else "llava",
        vision_config=tower,
        multimodal_projector_bias="mm.1.bias" in file.shapes,
        spatial_merge_size=number(file, "spatial_merge_size") if is_merged else None,
    )


def _pixtral_stems(config: VisionConfig) -> dict[str, str]:
    *merger, first, second = (step.name for step in config.projector if isinstance(step, Product))
    norms = (step.name for step in config.projector if isinstance(step, Scaling))
    merging = dict.fromkeys(merger, "mm.patch_merger") | dict.fromkeys(norms, "mm.input_norm")
    return merging | {first: "mm.1", second: "mm.2", f"{config.input_norm}": "v.pre_ln"}


def _internvl(file: GGUFFile) -> Settings:
    tower = encoder(
        file,
        model_type="internvl_vision",
        hidden_act="silu" if file.metadata.get("clip.use_silu") else "gelu",
        attention_bias="v.blk.0.attn_q.bias" in file.shapes,
        use_qk_norm="v.blk.0.attn_q_norm.weight" in file.shapes,
        norm_type="layer_norm" if "v.blk.0.ln1.bias" in file.shapes else "rms_norm",
        use_mean_pooling="v.post_ln.weight" not in file.shapes,
    )
    ratio = 1 / number(file, "projector.scale_factor")
    return {"model_type": "internvl", "vision_config": tower, "downsample_ratio": ratio}


def _internvl_stems(config: VisionConfig) -> dict[str, str]:
    stems = step_names(config.projector, "mm.model.mlp.0", ("mm.model.mlp.1", "mm.model.mlp.3"))
    return stems | {f"{config.class_token}": "v.class_embd", f"{config.encoder.names.norm}": "v.post_ln"}


def _internvl_images(file: GGUFFile) -> Settings:
    side = number(file, "image_size")
    tiles = present(min_patches=number(file, "preproc_min_tiles"), max_patches=number(file, "preproc_max_tiles"))
    return {"size": {"height": side, "width": side}, **tiles}


def _lfm2(file: GGUFFile) -> Settings:
    (rows,), (width,) = (file.shapes.get(name, (None,))[:1] for name in ("v.position_embd.weight", "mm.1.weight"))
    tower = encoder(file, model_type="siglip2_vision_model", num_patches=rows)
    return present(
        model_type="lfm2_vl",
        vision_config=tower,
        projector_hidden_size=width,
        projector_bias="mm.1.bias" in file.shapes,
        projector_use_layernorm="mm.input_norm.weight" in file.shapes,
        downsample_factor=number(file, "projector.scale_factor"),
    )


def _lfm2_stems(config: VisionConfig) -> dict[str, str]:
    return {
        **step_names(config.projector, "mm.input_norm", ("mm.1", "mm.2")),
        f"{config.encoder.names.norm}": "v.post_ln",
    }


def _gemma3(file: GGUFFile) -> Settings:
    tower = encoder(file, hidden_act=activation(file), model_type="siglip_vision_model")
    side = (number(file, "image_size") or 896) // (number(file, "patch_size") or 14)
    tokens = (side // (number(file, "projector.scale_factor") or 4)) ** 2
    return {"model_type": "gemma3", "vision_config": tower, "mm_tokens_per_image": tokens}


def _gemma3_stems(config: VisionConfig) -> dict[str, str]:
    return step_names(config.projector, "mm.soft_emb_norm", ("mm.input_projection",)) | {
        f"{config.encoder.names.norm}": "v.post_ln"
    }


def _gemma4(file: GGUFFile) -> Settings:
    """Return the settings of a Gemma 4. Sizes of heads and tables are in the tensors alone."""
    shapes = file.shapes
    (size,) = shapes.get("v.blk.0.attn_q_norm.weight", (64,))
    tower = present(
        hidden_size=number(file, "embedding_length"),
        intermediate_size=number(file, "feed_forward_length"),
        num_hidden_layers=number(file, "block_count"),
        num_attention_heads=number(file, "attention.head_count"),
        num_key_value_heads=shapes.get("v.blk.0.attn_k.weight", (0,))[0] // size or None,
        head_dim=size,
        rms_norm_eps=number(file, "attention.layer_norm_epsilon"),
        patch_size=number(file, "patch_size"),
        pooling_kernel_size=number(file, "projector.scale_factor"),
        position_embedding_size=shapes.get("v.position_embd.weight", (2, 10_240))[1],
        standardize="v.std_bias" in shapes,
        use_clipped_linears="v.blk.0.attn_q.input_min" in shapes,
    )
    return {"model_type": "gemma4", "vision_config": tower}


def _gemma4_stems(config: VisionConfig) -> dict[str, str]:
    place = config.encoder.names.layers.partition(".encoder")[0]
    return step_names(config.projector, "", ("mm.input_projection",)) | {place: "v"}


def _idefics3_stems(config: VisionConfig) -> dict[str, str]:
    names = [step.name for step in config.projector if isinstance(step, Product)]
    return {**dict(zip(names, ("mm.model.fc",), strict=True)), f"{config.encoder.names.norm}": "v.post_ln"}


def _qwen(file: GGUFFile) -> Settings:
    """Return the settings of any tower of a Qwen. The metadata of Qwen2-VL have another width."""
    hidden = number(file, "embedding_length")
    width = next((side for side in file.shapes.get("v.blk.0.ffn_up.weight", ()) if side != hidden), hidden)
    return present(
        depth=number(file, "block_count"),
        hidden_size=hidden,
        intermediate_size=width,
        num_heads=number(file, "attention.head_count"),
        patch_size=number(file, "patch_size"),
        spatial_merge_size=number(file, "spatial_merge_size"),
        hidden_act=activation(file),
    )


def _qwen2(file: GGUFFile) -> Settings:
    tower = _qwen(file)
    hidden, width = tower.pop("hidden_size"), tower.pop("intermediate_size")
    return {"model_type": "qwen2_vl", "vision_config": tower | {"embed_dim": hidden, "mlp_ratio": width / hidden}}


def _qwen2_5(file: GGUFFile) -> Settings:
    tower = _qwen(file)
    pattern = number(file, "n_wa_pattern")
    full = list(range(pattern - 1, tower["depth"], pattern)) if pattern else None
    further = present(fullatt_block_indexes=full, window_size=number(file, "window_size"), tokens_per_second=2)
    return {"model_type": "qwen2_5_vl", "vision_config": tower | further}


def _qwen3(file: GGUFFile) -> Settings:
    tower = _qwen(file)
    taps = [layer for layer, has_tap in enumerate(number(file, "is_deepstack_layers") or ()) if has_tap]
    (rows,) = file.shapes.get("v.position_embd.weight", (None,))[:1]
    further = present(deepstack_visual_indexes=taps, num_position_embeddings=rows)
    return {"model_type": "qwen3_vl", "vision_config": tower | further}


def _qwen_stems(config: VisionConfig) -> dict[str, str]:
    stems = step_names(config.projector, "v.post_ln", ("mm.0", "mm.2"))
    for tap in config.taps:
        place = f"v.deepstack.{tap.layer}"
        stems |= step_names(tap.steps, f"{place}.norm", (f"{place}.fc1", f"{place}.fc2"))
    return stems


def _small(file: GGUFFile) -> Settings:
    return {"min_pixels": 3_136, "max_pixels": 12_845_056}


def _large(file: GGUFFile) -> Settings:
    return {"min_pixels": 65_536, "max_pixels": 16_777_216}


_VIDEOS: Final = {"size": {"shortest_edge": 4_096, "longest_edge": 25_165_824}}
PROJECTORS: Final[Mapping[str, ProjectorType]] = {
    "gemma3": ProjectorType(_gemma3, _gemma3_stems),
    "gemma4v": ProjectorType(_gemma4, _gemma4_stems),
    "idefics3": ProjectorType(_idefics3, _idefics3_stems),
    "internvl": ProjectorType(_internvl, _internvl_stems, _internvl_images),
    "lfm2": ProjectorType(_lfm2, _lfm2_stems),
    "mlp": ProjectorType(llava_settings, llava_stems, llava_images, llava_output_size),
    "pixtral": ProjectorType(_pixtral, _pixtral_stems),
    "qwen2.5vl_merger": ProjectorType(_qwen2_5, _qwen_stems, _small),
    "qwen2vl_merger": ProjectorType(_qwen2, _qwen_stems, _small),
    "qwen3vl_merger": ProjectorType(_qwen3, _qwen_stems, _large, videos=_VIDEOS),
}
"""Supported types of projectors by their names in files. Files of Qwen lack sizes of pictures and windows, and the
positions of a second of a video: take the published ones. llama.cpp has other bounds of pictures, 8 to 4,096 tokens."""
