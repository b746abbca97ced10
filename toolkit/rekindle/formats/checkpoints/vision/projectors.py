"""Types of projectors in llama.cpp's files of vision towers: settings, and names of tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rekindle.core.models.vision.config import Product, Scaling, Step, VisionConfig
from rekindle.formats.checkpoints.gguf.architecture import plain
from rekindle.formats.checkpoints.gguf.file import GGUFFile

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProjectorType:
    """A type of projectors.

    Attributes:
        settings: returns an equivalent `config.json` without a text model, given the file.
        stems: returns the names in the file of the projector's tensors, by the model's names.
        images: settings of an equivalent `preprocessor_config.json`, for a file without settings of images.
    """

    settings: Callable[[GGUFFile], Settings]
    stems: Callable[[VisionConfig], dict[str, str]]
    images: Mapping[str, Any]


def number(file: GGUFFile, name: str) -> Any:
    """Return a value below "clip.vision." in the metadata, or None."""
    return plain(file.metadata.get(f"clip.vision.{name}"))


def present(**settings: Any) -> Settings:
    """Return the settings other than None."""
    return {name: value for name, value in settings.items() if value is not None}


def _activation(file: GGUFFile) -> str:
    is_silu, is_gelu = file.metadata.get("clip.use_silu"), file.metadata.get("clip.use_gelu")
    return "silu" if is_silu else "gelu_pytorch_tanh" if is_gelu else "quick_gelu"


def _idefics3(file: GGUFFile) -> Settings:
    tower = present(
        hidden_size=number(file, "embedding_length"),
        intermediate_size=number(file, "feed_forward_length"),
        num_hidden_layers=number(file, "block_count"),
        num_attention_heads=number(file, "attention.head_count"),
        layer_norm_eps=number(file, "attention.layer_norm_epsilon"),
        image_size=number(file, "image_size"),
        patch_size=number(file, "patch_size"),
        hidden_act=_activation(file),
    )
    return present(model_type="idefics3", vision_config=tower, scale_factor=number(file, "projector.scale_factor"))


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
        hidden_act=_activation(file),
    )


def _qwen2(file: GGUFFile) -> Settings:
    tower = _qwen(file)
    hidden, width = tower.pop("hidden_size"), tower.pop("intermediate_size")
    return {"model_type": "qwen2_vl", "vision_config": tower | {"embed_dim": hidden, "mlp_ratio": width / hidden}}


def _qwen2_5(file: GGUFFile) -> Settings:
    tower = _qwen(file)
    pattern = number(file, "n_wa_pattern")
    full = list(range(pattern - 1, tower["depth"], pattern)) if pattern else None
    further = present(fullatt_block_indexes=full, window_size=number(file, "window_size"))
    return {"model_type": "qwen2_5_vl", "vision_config": tower | further}


def _qwen3(file: GGUFFile) -> Settings:
    tower = _qwen(file)
    taps = [layer for layer, has_tap in enumerate(number(file, "is_deepstack_layers") or ()) if has_tap]
    (rows,) = file.shapes.get("v.position_embd.weight", (None,))[:1]
    further = present(deepstack_visual_indexes=taps, num_position_embeddings=rows)
    return {"model_type": "qwen3_vl", "vision_config": tower | further}


def _qwen_stems(config: VisionConfig) -> dict[str, str]:
    stems = _steps(config.projector, "v.post_ln", ("mm.0", "mm.2"))
    for tap in config.taps:
        place = f"v.deepstack.{tap.layer}"
        stems |= _steps(tap.steps, f"{place}.norm", (f"{place}.fc1", f"{place}.fc2"))
    return stems


def _steps(steps: tuple[Step, ...], norm: str, products: tuple[str, ...]) -> dict[str, str]:
    """Return the names in a file of the norm and of the products among the steps."""
    norms = [step.name for step in steps if isinstance(step, Scaling)]
    own = [step.name for step in steps if isinstance(step, Product)]
    return dict.fromkeys(norms, norm) | dict(zip(own, products, strict=True))


_LARGE: Final = {"min_pixels": 65_536, "max_pixels": 16_777_216}
_SMALL: Final = {"min_pixels": 3_136, "max_pixels": 12_845_056}
PROJECTORS: Final[Mapping[str, ProjectorType]] = {
    "idefics3": ProjectorType(_idefics3, _idefics3_stems, {}),
    "qwen2.5vl_merger": ProjectorType(_qwen2_5, _qwen_stems, _SMALL),
    "qwen2vl_merger": ProjectorType(_qwen2, _qwen_stems, _SMALL),
    "qwen3vl_merger": ProjectorType(_qwen3, _qwen_stems, _LARGE),
}
"""Supported types of projectors by their names in files. Files of Qwen have no sizes of images: take the published."""
