"""Vision towers in separate GGUF files, in the form of llama.cpp (tools/mtmd)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import FeedForwardConfig, ModelConfig
from rekindle.core.models.vision.config import Scaling, VisionConfig
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import TowerFiles, check_counts, check_layers
from rekindle.formats.checkpoints.gguf.file import GGUFFile, open_gguf_file
from rekindle.formats.checkpoints.vision.names import TOWER
from rekindle.formats.checkpoints.vision.projector_type import ProjectorType
from rekindle.formats.checkpoints.vision.projectors import PROJECTORS
from rekindle.formats.checkpoints.vision.tensors import Loader, all_names, tower_files
from rekindle.formats.families.towers import tower_config, tower_kind
from rekindle.formats.images.processors.families import IMAGE_SETTINGS, image_processor
from rekindle.formats.images.processors.processor import ImageProcessor
from rekindle_kernels.blocks import Tensor

_PATCHES: Final = "v.patch_embd.weight", "v.patch_embd.weight.1"
"""The weights of a patch, in each of two frames."""


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


def open_tower(path: Path, text: ModelConfig, tokenizer: Tokenizer | None = None) -> OpenedTower:
    """Open the tower for a text model and its tokenizer.

    Raises:
        UnsupportedModel: the file is no tower, or for a model of another size, or the tower is not supported.
        CheckpointError: the file is truncated or corrupt, or lacks a tensor.
    """
    source, file = str(path), open_gguf_file(path)
    kind = projector_type(file.metadata, source)
    if (of_model := kind.output_size(file)) not in (None, text.hidden_size):
        raise UnsupportedModel(
            f"{source}: its tower is for embeddings of {of_model} numbers, and those of the model have "
            f"{text.hidden_size}: take the mmproj file from the model's repository"
        )
    own = {"model_type": text.family, "rms_norm_eps": text.norm.eps, "embedding_multiplier": text.embedding_multiplier}
    blocks = file.metadata.get("clip.vision.block_count")
    check_layers(blocks if isinstance(blocks, int) else 0, file.shapes, source)
    settings = kind.settings(file) | {"text_config": own}
    config = tower_config(settings, text.hidden_size, source)
    assert config is not None, "the settings have a tower"
    check_counts(file.shapes, config, source)
    config = _as_stored(config, file)
    files = tower_files(config, _names(config, kind, file), *_tensors(file), source)
    further: dict[str, Mapping[str, Any]] = {name: {} for name in IMAGE_SETTINGS}
    further[IMAGE_SETTINGS[0]] = {**kind.images(file), **image_settings(file.metadata)}
    further["video_preprocessor_config"] = kind.videos
    return OpenedTower(path, files, image_processor(tower_kind(settings), path, settings, further, tokenizer))


def image_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an equivalent `preprocessor_config.json`; missing ones have their defaults."""
    keys = {name: metadata.get(f"clip.vision.{name}") for name in ("image_size", "preproc_image_size")}
    sizes = {"max_image_size": keys["image_size"], "size": keys["preproc_image_size"]}
    names = {name: name for name in ("image_mean", "image_std")}
    names |= {"min_pixels": "image_min_pixels", "max_pixels": "image_max_pixels"}
    numbers = {own: metadata.get(f"clip.vision.{name}") for own, name in names.items()}
    return {name: {"longest_edge": size} for name, size in sizes.items() if size} | {
        name: values for name, values in numbers.items() if values
    }


def projector_type(metadata: Mapping[str, Any], source: str) -> ProjectorType:
    """Return the type of the projector in a file.

    Raises:
        UnsupportedModel: the metadata describe no tower, or one without support.
    """
    if metadata.get("general.architecture") != TOWER:
        raise UnsupportedModel(f"{source} is no vision tower: pass a file such as mmproj-MODEL-f16.gguf as mmproj")
    kind = str(metadata.get("clip.vision.projector_type") or metadata.get("clip.projector_type"))
    if kind not in PROJECTORS:
        raise UnsupportedModel(f"{source}: the projector {kind!r:.80} is not supported, only {', '.join(PROJECTORS)}")
    return PROJECTORS[kind]


def _as_stored(config: VisionConfig, file: GGUFFile) -> VisionConfig:
    """Return a tower with the offsets of norms in their weights, and queries, keys and values apart as in the file."""
    names, steps = config.encoder.names, config.projector
    whole = (
        replace(each, norm=replace(each.norm, offset=0.0)) if isinstance(each, Scaling) else each for each in steps
    )
    config = replace(config, projector=tuple(whole))
    if len(names.qkv) > 1 or "v.blk.0.attn_qkv.weight" in file.shapes:
        return config
    names = replace(names, qkv=tuple(f"{names.qkv[0]}.{side}" for side in "qkv"))
    return replace(config, encoder=replace(config.encoder, names=names))


def _tensors(file: GGUFFile) -> tuple[dict[str, tuple[int, ...]], dict[str, Loader]]:
    """Return shapes and loaders of all tensors. The weights of a patch in two frames are one tensor."""
    shapes = dict(file.shapes)
    loaders: dict[str, Loader] = {name: partial(file.read, name) for name in shapes}
    first, second = _PATCHES
    if second in loaders:
        hidden, channels, *sides = shapes[first]
        shapes[first] = (hidden, channels, len(_PATCHES), *sides)
        loaders[first] = partial(_both, loaders[first], loaders[second])
    return shapes, loaders


def _both(first: Loader, second: Loader) -> Tensor:
    return np.stack([np.asarray(load(), np.float32) for load in (first, second)], axis=2)


def _names(config: VisionConfig, kind: ProjectorType, file: GGUFFile) -> dict[str, str]:
    """Return the name in the file of each tensor of a tower."""
    names, feed_forward = config.encoder.names, config.encoder.layers[0].feed_forward
    assert isinstance(feed_forward, FeedForwardConfig)
    up, down = "ffn_up", "ffn_down"
    if file.shapes.get(f"v.blk.0.{up}.weight") == (config.encoder.hidden_size, feed_forward.width):
        up, down = down, up  # older converters exchanged the two names
    qkv = ("attn_qkv",) if len(names.qkv) == 1 else ("attn_q", "attn_k", "attn_v")
    gate_up = ("ffn_gate", up) if feed_forward.gated else (up,)
    parts: dict[str | None, str] = {names.before_attention: "ln1", names.before_mlp: "ln2"}
    parts |= {names.after_attention: "attn_post_norm", names.after_mlp: "ffn_post_norm"}
    parts |= {names.q_norm: "attn_q_norm", names.k_norm: "attn_k_norm"}
    parts |= dict(zip(config.branch_scales or (), ("ls1", "ls2"), strict=False))
    own = (*names.qkv, names.out, *names.gate_up, names.down)
    stored_parts = (*qkv, "attn_out", *gate_up, down)
    parts |= dict(zip(own, stored_parts, strict=True))
    parts |= {name.removesuffix(".linear"): stored for name, stored in zip(own, stored_parts, strict=True)}  # bounds
    stems = {
        f"{names.layers}.{layer}.{part}": f"v.blk.{layer}.{stored}"
        for layer in range(config.encoder.num_layers)
        for part, stored in parts.items()
    }
    stems |= {names.embedding: "v.patch_embd", names.positions: "v.position_embd"} | kind.stems(config)
    pairs = (name.rpartition(".") for name in all_names(config))
    stored = {f"{stem}.{kind}": f"{stems[stem]}.{kind}" for stem, _, kind in pairs}
    return {name: each if each in file.shapes else each.removesuffix(".weight") for name, each in stored.items()}
