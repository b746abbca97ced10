"""Opening of a GGUF file, with conversion of llama.cpp's names and conventions to Hugging Face's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.request.request import Pooling
from rekindle.formats.checkpoints.checkpoint import Checkpoint, LazyTensors, TowerFiles, check_shapes
from rekindle.formats.checkpoints.gguf.architecture import read_metadata, settings_of
from rekindle.formats.checkpoints.gguf.architectures.table import ARCHITECTURES
from rekindle.formats.checkpoints.gguf.places import find_places, loaders
from rekindle.formats.checkpoints.gguf.rope import rope_parameters
from rekindle.formats.checkpoints.gguf.split import open_gguf_files
from rekindle.formats.checkpoints.gguf.tokenizer import eos_ids, gguf_tokenizer
from rekindle.formats.checkpoints.uses import Embedding, Uses
from rekindle.formats.checkpoints.vision.mmproj import ARCHITECTURE as TOWER
from rekindle.formats.checkpoints.vision.mmproj import find_mmproj, open_tower
from rekindle.formats.families.refusals import gguf_refusal
from rekindle.formats.families.registry import parse_config


def open_gguf(path: Path, mmproj: Path | None = None) -> Checkpoint:
    """Open a GGUF file: read its header and tokenizer, and leave the weights on disk.

    Args:
        path: path of the file, or of any part of a split model.
        mmproj: path of the file with the vision tower; None for a supported one beside the model, if any.

    Raises:
        UnsupportedModel: the model's architecture, tokenizer, or an option is not implemented.
        CheckpointError: the file is truncated or corrupt, or a tensor is missing or has a wrong shape.
    """
    source = str(path)
    file = open_gguf_files(path)
    name = file.metadata.get("general.architecture")
    if name == TOWER:
        raise UnsupportedModel(f"{source} is a vision tower: open the file of its model, and pass this one as mmproj")
    architecture = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if architecture is None:
        raise UnsupportedModel(gguf_refusal(source, name))
    metadata = read_metadata(file, architecture, source)
    rope = rope_parameters(metadata, source, truncated=architecture.truncated)
    config = parse_config(settings_of(metadata, architecture, rope, source), source)
    # llama.cpp stores all projections as (out, in), and queries, keys and values one after another.
    config = replace(config, names=replace(config.names, transposed=False, qkv_by_head=False))
    shapes, tensors = loaders(file, find_places(file, architecture, config, source), config)
    check_shapes(shapes, config, source)
    tokenizer = gguf_tokenizer(file.metadata, source)
    uses = Uses(embedding=_embedding(file.metadata.get(f"{name}.pooling_type")))
    ends, formats = eos_ids(file.metadata), file.formats()
    tower_path = find_mmproj(path) if mmproj is None else mmproj
    vision = None if tower_path is None else _tower(tower_path, config, is_required=mmproj is not None)
    paths = file.paths if vision is None or tower_path is None else (*file.paths, tower_path)
    lazy = LazyTensors(tensors)
    return Checkpoint(source, config, lazy, ends, tokenizer, {}, paths, uses, formats, str(name), vision=vision)


def _tower(path: Path, config: ModelConfig, *, is_required: bool) -> TowerFiles | None:
    """Return the vision tower in a file; None for a tower without support, unless it is required."""
    try:
        return open_tower(path, config.hidden_size)
    except UnsupportedModel:
        if is_required:
            raise
        return None


def _embedding(pooling: Any) -> Embedding:
    """Return the embedding method for llama.cpp's pooling number. 0 and None mean an unspecified method."""
    if pooling in (None, 0):
        return Embedding()
    supported: dict[Any, Pooling] = {1: "mean", 3: "last"}
    if pooling in supported:
        return Embedding(supported[pooling])
    return Embedding(unsupported_reason=f"its pooling has the number {pooling}; supported are 1 (mean) and 3 (last)")
