"""Opening of a GGUF file, with conversion of llama.cpp's names and conventions to Hugging Face's."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.request.request import Pooling
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import Checkpoint, LazyTensors, check_counts, check_layers, check_shapes
from rekindle.formats.checkpoints.gguf.architecture import Architecture, FileMetadata, read_metadata, settings_of
from rekindle.formats.checkpoints.gguf.architectures.table import ARCHITECTURES
from rekindle.formats.checkpoints.gguf.encoder_tokenizers import encoder_tokenizer
from rekindle.formats.checkpoints.gguf.file import GGUFFile
from rekindle.formats.checkpoints.gguf.places import find_places, loaders
from rekindle.formats.checkpoints.gguf.rope import rope_parameters
from rekindle.formats.checkpoints.gguf.split import open_gguf_files
from rekindle.formats.checkpoints.gguf.tokenizer import eos_ids, gguf_tokenizer
from rekindle.formats.checkpoints.heads import HeadLayer
from rekindle.formats.checkpoints.uses import Activation, Classifier, Dense, Embedding, Uses
from rekindle.formats.checkpoints.vision.names import TOWER, find_mmproj
from rekindle.formats.families.registry import parse_config

if TYPE_CHECKING:
    from rekindle.formats.checkpoints.vision.mmproj import OpenedTower

_RANK: Final = 4
"""llama.cpp's pooling number of models with a head over the first token."""


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
        from rekindle.formats.families.refusals import gguf_refusal

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
    pooling = file.metadata.get(f"{name}.pooling_type")
    embedding = replace(_embedding(pooling, of_encoder=not config.predicts), dense=_dense(file))
    uses = Uses(config.predicts, embedding, _classifier(file, architecture), both_ways=config.both_ways)
    if tokenizer is not None and not config.predicts:
        tokenizer = encoder_tokenizer(tokenizer, file.metadata, config, source)
    ends, formats = eos_ids(file.metadata), file.formats()
    model = Checkpoint(source, config, LazyTensors(tensors), ends, tokenizer, {}, file.paths, uses, formats, str(name))
    tower = _tower(path, config, tokenizer, mmproj, beside)
    return model if tower is None else _with_tower(model, tower, metadata, architecture)


def _with_tower(
    model: Checkpoint, tower: "OpenedTower", metadata: FileMetadata, architecture: Architecture
) -> Checkpoint:
    """Return a model with its vision tower, and with positions in rows and columns if it has such."""
    from rekindle.formats.families.coordinates import with_sections
    from rekindle.formats.images.chat_templates import with_places

    config = model.config
    if sections := metadata.keys.get("rope.dimension_sections"):
        config = with_sections(config, sections, model.source, interleaved=architecture.interleaved_sections)
    return replace(
        model,
        config=config,
        tokenizer=with_places(model.tokenizer, tower.images),
        files=(*model.files, tower.path),
        images=tower.images,
        vision=tower.files,
    )


def _classifier(file: GGUFFile, architecture: Architecture) -> Classifier | None:
    """Return the head over texts of an encoder, a layer and a product as of RoBERTa; None without both."""
    if not {"cls.weight", "cls.output.weight"} <= file.shapes.keys():
        return None
    layer, bias, weight, own = (
        np.asarray(file.read(name)).astype(np.float32) if name in file.shapes else None
        for name in ("cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias")
    )
    assert layer is not None
    assert weight is not None
    names = file.metadata.get(f"{architecture.name}.classifier.output_labels") or ()
    labels = tuple(str(names[i]) if i < len(names) else f"LABEL_{i}" for i in range(len(weight)))
    activation: Activation = "sigmoid" if len(labels) == 1 else "softmax"
    return Classifier(weight, labels, activation, own, (HeadLayer(layer, bias, "tanh"),), "cls")


def _tower(
    path: Path, config: ModelConfig, tokenizer: Tokenizer | None, mmproj: Path | None, beside: Path | None
) -> "OpenedTower | None":
    """Return the vision tower of a model; None if there is no supported one beside it, and none is required."""
    place = mmproj or beside or find_mmproj(path)
    if place is None:
        return None
    from rekindle.formats.checkpoints.vision.mmproj import open_tower

    try:
        return open_tower(place, config, tokenizer)
    except UnsupportedModel:
        if mmproj is not None:
            raise
        return None


def _dense(file: GGUFFile) -> tuple[Dense, ...]:
    """Return the dense layers after the pooling, which llama.cpp counts from 2."""
    names = [name for name in ("dense_2.weight", "dense_3.weight") if name in file.shapes]
    return tuple(Dense(np.asarray(file.read(name)).astype(np.float32)) for name in names)


def _embedding(pooling: Any, *, of_encoder: bool) -> Embedding:
    """Return the embedding method for llama.cpp's pooling number. 0 and None mean an unspecified method."""
    if pooling in (None, 0):
        return Embedding()
    supported: dict[Any, Pooling] = {1: "mean", 2: "cls", 3: "last"}
    if pooling in supported:
        return Embedding(supported[pooling])
    if of_encoder and pooling == _RANK:
        return Embedding("cls")
    return Embedding(
        unsupported_reason=f"its pooling has the number {pooling}; supported are 1 (mean), 2 (cls) and 3 (last)"
    )
