"""The projector "mlp" of LLaVA, LLaVA-NeXT and Granite Vision, in the form of llama.cpp's older converter."""

from typing import Any, Final

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.vision.config import VisionConfig
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.checkpoints.vision.projector_type import Settings, encoder, number, present, step_names

_REFUSED: Final = {
    "mm.3.weight": "norms between its products, as in Yi-VL",
    "v.post_ln.weight": "a norm behind its encoder",
}
"""Parts without support, by a tensor of each."""


def llava_settings(file: GGUFFile) -> Settings:
    """Return the settings of a LLaVA, or of a LLaVA-NeXT. A tower with a class token is CLIP's, and another SigLIP's.

    The converter's flag of activations is false for both.

    Raises:
        UnsupportedModel: the projector has other parts, or tiles are joined in another way.
    """
    for tensor, part in _REFUSED.items():
        if tensor in file.shapes:
            raise UnsupportedModel(f"{file.paths[0]}: a projector 'mlp' with {part}, is not supported")
    sizes, joined = _sizes(file), number(file, "mm_patch_merge_type")
    aspect = number(file, "image_aspect_ratio")
    if sizes and joined != "spatial_unpad":
        raise UnsupportedModel(
            f"{file.paths[0]}: mm_patch_merge_type {joined!r:.80} is not supported, only 'spatial_unpad'"
        )
    if not sizes and aspect not in (None, "pad", "square"):
        raise UnsupportedModel(
            f"{file.paths[0]}: image_aspect_ratio {aspect!r:.80} without sizes of tiles is not supported"
        )
    is_clip = "v.class_embd" in file.shapes
    applied = "gelu_pytorch_tanh" if not is_clip else "gelu" if file.metadata.get("clip.use_gelu") else "quick_gelu"
    tower = encoder(file, model_type=f"{'clip' if is_clip else 'siglip'}_vision_model", hidden_act=applied)
    return present(
        model_type="llava_next" if sizes else "llava",
        vision_config=tower,
        vision_feature_layer=number(file, "feature_layer") or number(file, "block_count"),
        vision_feature_select_strategy="default" if is_clip else "full",
        multimodal_projector_bias="mm.0.bias" in file.shapes,
        image_grid_pinpoints=sizes or None,
    )


def llava_stems(config: VisionConfig) -> dict[str, str]:
    """Return the names in the file of the tensors around the encoder."""
    stems = step_names(config.projector, "", ("mm.0", "mm.2"))
    parts = {config.input_norm: "v.pre_ln", config.class_token: "v.class_embd", config.newline: "model.image_newline"}
    return stems | {name: stored for name, stored in parts.items() if name is not None}


def llava_images(file: GGUFFile) -> Settings:
    """Return the settings of images: tiles, or one square, padded as in the training of LLaVA 1.5."""
    side, sizes = number(file, "image_size"), _sizes(file)
    whole = {"height": side, "width": side}
    is_padded = not sizes and number(file, "image_aspect_ratio") != "square"
    size = {"shortest_edge": side} if "v.class_embd" in file.shapes else whole
    return present(size=size, crop_size=whole, do_pad=is_padded, image_grid_pinpoints=sizes or None)


def llava_output_size(file: GGUFFile) -> Any:
    """Return the numbers of an embedding: the metadata have those of CLIP's projection."""
    return file.shapes.get("mm.2.weight", (None,))[0]


def _sizes(file: GGUFFile) -> list[list[int]]:
    """Return (height, width) of the grids of tiles in pixels, flat in the file."""
    numbers = number(file, "image_grid_pinpoints") or []
    return [list(numbers[place : place + 2]) for place in range(0, len(numbers), 2)]
