"""Opening of a GGUF file, with conversion of llama.cpp's names and conventions to Hugging Face's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.request.request import Pooling
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint, LazyTensors, check_counts, check_layers, check_shapes
from rekindle.formats.checkpoints.gguf.architecture import read_metadata, settings_of
from rekindle.formats.checkpoints.gguf.architectures.table import ARCHITECTURES
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.checkpoints.gguf.places import find_places, loaders
from rekindle.formats.checkpoints.gguf.rope import rope_parameters
from rekindle.formats.checkpoints.gguf.split import open_gguf_files
from rekindle.formats.checkpoints.gguf.tokenizer import eos_ids, gguf_tokenizer
from rekindle.formats.checkpoints.uses import Dense, Embedding, Uses
from rekindle.formats.checkpoints.vision.mmproj import ARCHITECTURE as TOWER
from rekindle.formats.checkpoints.vision.mmproj import OpenedTower, open_tower
from rekindle.formats.checkpoints.vision.names import find_mmproj
from rekindle.formats.families.coordinates import with_sections
from rekindle.formats.families.refusals import gguf_refusal
from rekindle.formats.families.registry import parse_config
from rekindle.formats.images.chat_templates import with_places


def open_gguf(path: Path, mmproj: Path | None = None, beside: Path | None = None) -> Checkpoint:
    """Open a GGUF file: read its header and tokenizer, and leave the weights on disk.

    Args:
        path: path of the file, or of any part of a split model.
        mmproj: path of the file with the vision tower; None for a supported one beside the model, if any.
        beside: path of the tower beside the model; None to look for one in the model's directory.

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
    blocks = file.metadata.get(f"{architecture.name}.block_count")
    check_layers(blocks if isinstance(blocks, int) else 0, file.shapes, source)
    metadata = read_metadata(file, architecture, source)
    rope = rope_parameters(metadata, source, truncated=architecture.truncated)
    config = parse_config(settings_of(metadata, architecture, rope, source), source)
    # llama.cpp stores all projections as (out, in), and queries, keys and values one after another.
    config = replace(config, names=replace(config.names, transposed=False, qkv_by_head=False))
    check_counts(file.shapes, config, source)
    shapes, tensors = loaders(file, find_places(file, architecture, config, source), config)
    check_shapes(shapes, config, source)
    tokenizer = gguf_tokenizer(file.metadata, source)
    embedding = replace(_embedding(file.metadata.get(f"{name}.pooling_type")), dense=_dense(file))
    uses = Uses(embedding=embedding, both_ways=config.both_ways)
    ends, formats = eos_ids(file.metadata), file.formats()
    tower = _tower(path, config, tokenizer, mmproj, beside)
    paths = file.paths if tower is None else (*file.paths, tower.path)
    if tower is not None and (sections := metadata.keys.get("rope.dimension_sections")):
        config = with_sections(config, sections, source, interleaved=architecture.interleaved_sections)
    return Checkpoint(
        source,
        config,
        LazyTensors(tensors),
        ends,
        tokenizer if tower is None else with_places(tokenizer, tower.images),
        {},
        paths,
        uses,
        formats,
        str(name),
        images=None if tower is None else tower.images,
        vision=None if tower is None else tower.files,
    )


def _tower(
    path: Path, config: ModelConfig, tokenizer: Tokenizer | None, mmproj: Path | None, beside: Path | None
) -> OpenedTower | None:
    """Return the vision tower of a model; None if there is no supported one beside it, and none is required."""
    if mmproj is not None:
        return open_tower(mmproj, config, tokenizer)
    place = beside or find_mmproj(path)
    try:
        return None if place is None else open_tower(place, config, tokenizer)
    except UnsupportedModel:
        return None


def _dense(file: GGUFFile) -> tuple[Dense, ...]:
    """Return the dense layers after the pooling, which llama.cpp counts from 2."""
    names = [name for name in ("dense_2.weight", "dense_3.weight") if name in file.shapes]
    return tuple(Dense(np.asarray(file.read(name)).astype(np.float32)) for name in names)


def _embedding(pooling: Any) -> Embedding:
    """Return the embedding method for llama.cpp's pooling number. 0 and None mean an unspecified method."""
    if pooling in (None, 0):
        return Embedding()
    supported: dict[Any, Pooling] = {1: "mean", 2: "cls", 3: "last"}
    if pooling in supported:
        return Embedding(supported[pooling])
    return Embedding(
        unsupported_reason=f"its pooling has the number {pooling}; supported are 1 (mean), 2 (cls) and 3 (last)"
    )
