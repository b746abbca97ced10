"""Vision towers in separate GGUF files, in the form of llama.cpp (tools/mtmd)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import FeedForwardConfig
from rekindle.core.models.vision.config import Product, VisionConfig
from rekindle.core.models.vision.tower import tower_shapes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import TowerFiles
from rekindle.formats.checkpoints.gguf.architecture import plain
from rekindle.formats.checkpoints.gguf.file import GGUFFile, open_gguf_file
from rekindle.formats.checkpoints.vision.tensors import tower_files
from rekindle.formats.families.towers import tower_config, tower_kind
from rekindle.formats.images.processors.families import IMAGE_SETTINGS, image_processor
from rekindle.formats.images.processors.processor import ImageProcessor

ARCHITECTURE: Final = "clip"
"""The architecture in the metadata of towers."""
_PROJECTORS: Final = ("idefics3",)
"""Supported types of projectors."""
_NUMBERS: Final = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "image_size": "image_size",
    "patch_size": "patch_size",
}
"""Metadata keys after "clip.vision.", by the key of a "vision_config"."""


@dataclass(frozen=True)
class OpenedTower:
    """The vision tower in a file, and the rules for its images.

    Attributes:
        path: path of the file.
        files: the tower.
        images: the rules; None for a model without a tokenizer.
    """

    path: Path
    files: TowerFiles
    images: ImageProcessor | None


def open_tower(path: Path, output_size: int, tokenizer: Tokenizer | None = None) -> OpenedTower:
    """Open the tower for a model with embeddings of this size, and its tokenizer.

    Raises:
        UnsupportedModel: the file is no tower, or for a model of another size, or the tower is not supported.
        CheckpointError: the file is truncated or corrupt, or lacks a tensor.
    """
    source, file = str(path), open_gguf_file(path)
    settings = tower_settings(file.metadata, source)
    of_model = file.metadata.get("clip.vision.projection_dim", output_size)
    if of_model != output_size:
        raise UnsupportedModel(
            f"{source}: its tower is for embeddings of {of_model} numbers, and those of the model have {output_size}: "
            "take the mmproj file from the model's repository"
        )
    config = tower_config(settings, output_size, source)
    assert config is not None, "the settings have a tower"
    loaders = {name: partial(file.read, name) for name in file.shapes}
    files = tower_files(config, _names(config, file), file.shapes, loaders, source)
    further = {name: image_settings(file.metadata) if name == IMAGE_SETTINGS[0] else {} for name in IMAGE_SETTINGS}
    return OpenedTower(path, files, image_processor(tower_kind(settings), path, settings, further, tokenizer))


def image_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an equivalent `preprocessor_config.json`; missing ones have their defaults."""
    keys = {name: metadata.get(f"clip.vision.{name}") for name in ("image_size", "preproc_image_size")}
    sizes = {"max_image_size": keys["image_size"], "size": keys["preproc_image_size"]}
    numbers = {name: metadata.get(f"clip.vision.{name}") for name in ("image_mean", "image_std")}
    return {name: {"longest_edge": size} for name, size in sizes.items() if size} | {
        name: values for name, values in numbers.items() if values
    }


def tower_settings(metadata: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the settings of an equivalent `config.json`, without a text model.

    Raises:
        UnsupportedModel: the metadata describe no tower, or one without support.
    """
    if metadata.get("general.architecture") != ARCHITECTURE:
        raise UnsupportedModel(f"{source} is no vision tower: pass a file such as mmproj-MODEL-f16.gguf as mmproj")
    kind = metadata.get("clip.vision.projector_type") or metadata.get("clip.projector_type")
    if kind not in _PROJECTORS:
        raise UnsupportedModel(f"{source}: the projector {kind!r:.80} is not supported, only {', '.join(_PROJECTORS)}")
    values = {key: plain(metadata.get(f"clip.vision.{name}")) for key, name in _NUMBERS.items()}
    is_silu, is_gelu = metadata.get("clip.use_silu"), metadata.get("clip.use_gelu")
    values["hidden_act"] = "silu" if is_silu else "gelu_pytorch_tanh" if is_gelu else "quick_gelu"
    merge = metadata.get("clip.vision.projector.scale_factor")
    outer = {"model_type": kind, "vision_config": {name: each for name, each in values.items() if each is not None}}
    return outer if merge is None else outer | {"scale_factor": merge}


def _names(config: VisionConfig, file: GGUFFile) -> dict[str, str]:
    """Return the name in the file of each tensor of a tower."""
    names, feed_forward = config.encoder.names, config.encoder.layers[0].feed_forward
    assert isinstance(feed_forward, FeedForwardConfig)
    up, down = "ffn_up", "ffn_down"
    if file.shapes.get(f"v.blk.0.{up}.weight") == (config.encoder.hidden_size, feed_forward.width):
        up, down = down, up  # older converters exchanged the two names
    parts: dict[str | None, str] = {names.before_attention: "ln1", names.before_mlp: "ln2"}
    own = (*names.qkv, names.out, *names.gate_up, names.down)
    parts |= dict(zip(own, ("attn_q", "attn_k", "attn_v", "attn_out", up, down), strict=True))
    stems = {
        f"{names.layers}.{layer}.{part}": f"v.blk.{layer}.{stored}"
        for layer in range(config.encoder.num_layers)
        for part, stored in parts.items()
    }
    projector = [step.name for step in config.projector if isinstance(step, Product)]
    stems |= {names.embedding: "v.patch_embd", names.positions: "v.position_embd"}
    stems |= dict(zip(projector, ("mm.model.fc",), strict=True))
    stems[f"{names.norm}"] = "v.post_ln"
    pairs = (name.rpartition(".") for name in tower_shapes(config))
    return {f"{stem}.{kind}": f"{stems[stem]}.{kind}" for stem, _, kind in pairs}
