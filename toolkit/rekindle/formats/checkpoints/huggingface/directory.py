"""Opening of a Hugging Face model directory: config.json, safetensors, and an optional tokenizer."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, ModelNotFound
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.weights.requests import Shapes
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.checkpoint import (
    Checkpoint,
    LazyTensors,
    TowerFiles,
    check_counts,
    check_shapes,
)
from rekindle.formats.checkpoints.huggingface.classifier import is_classifier, read_activation, read_classifier
from rekindle.formats.checkpoints.huggingface.decision_form import read_decision_form
from rekindle.formats.checkpoints.huggingface.encoder_heads import EncoderHeads, read_heads
from rekindle.formats.checkpoints.huggingface.encoder_texts import encoder_tokenizer
from rekindle.formats.checkpoints.huggingface.foreign import (
    advice_for,
    is_mistrals,
    mistral_settings,
    open_mistrals,
    with_pairs,
)
from rekindle.formats.checkpoints.huggingface.names import stored_names
from rekindle.formats.checkpoints.huggingface.quantized.formats import formats_of, with_quantized
from rekindle.formats.checkpoints.huggingface.safetensors_file import SafetensorsFile
from rekindle.formats.checkpoints.huggingface.sentence_embedding import (
    read_answers,
    read_embedding,
    transformer_folder,
)
from rekindle.formats.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.formats.checkpoints.huggingface.weight_files import open_weight_files
from rekindle.formats.checkpoints.tied import has_separate_head, head_and_embedding
from rekindle.formats.checkpoints.uses import Classifier, Uses
from rekindle.formats.checkpoints.vision.tensors import own_names, tower_files
from rekindle.formats.families.coordinates import with_coordinates
from rekindle.formats.families.draft_heads import draft_head_of
from rekindle.formats.families.quantization import method_of
from rekindle.formats.families.reading import Family
from rekindle.formats.families.registry import parse_config
from rekindle.formats.families.towers import tower_config, tower_kind
from rekindle.formats.families.wrapped import PREFIX_ATTENTION, end_tokens, may_be_tied, text_config_of, tie_flags
from rekindle.formats.images.chat_templates import with_places
from rekindle.formats.images.processors.families import IMAGE_SETTINGS, image_processor
from rekindle.formats.model_file import is_present, read_json
from rekindle_kernels.blocks import Tensor
from rekindle_kernels.quantized import Quantized, Stack

_OF_TOWERS: Final = re.compile(r"(?:^|\.)(?:vision_tower|vision_model|visual)\.")
"""Tensors of a vision tower, in the names of most families."""
Loader = Callable[[], Tensor]
Owners = Mapping[str, tuple[SafetensorsFile, str]]
"""File and stored name of each tensor, by its name in the model."""


def open_directory(directory: Path, family: Family | None = None) -> Checkpoint:
    """Open a model directory: read headers and tokenizer, and leave the weights on disk.

    Args:
        directory: the model directory.
        family: reader of the model, instead of the supported families.

    Raises:
        ModelNotFound: the directory has no config.json.
        UnsupportedModel: the model's architecture or an option of it is not implemented.
        CheckpointError: a file is missing, truncated or corrupt, or a tensor is missing or has a wrong shape.
    """
    source, whole = str(directory), directory
    directory = transformer_folder(whole)
    has_config = is_present(directory / "config.json")
    is_mistral = not has_config and is_mistrals(directory)
    if not is_mistral and not has_config:
        advice = advice_for(directory)
        raise ModelNotFound(f"{source} is not a model directory: it has no config.json{advice and f'; {advice}'}")
    settings = mistral_settings(directory) if is_mistral else read_json(directory / "config.json")
    config = parse_config(settings, f"{source}/config.json", family)
    config = with_pairs(config) if is_mistral else config
    weight_files = open_mistrals(directory) if is_mistral else open_weight_files(directory)
    files = with_quantized(weight_files, _with_quantization(settings, directory), source)
    check_counts({name: shape for file in files for name, shape in file.shapes.items()}, config, source)
    owners, is_base = _owners(files, config)
    config, generates = _with_head(config, settings, owners, is_base or _embeds(whole), source)
    shapes, loaders = _stored(owners, expected_shapes(config))
    remedy = (
        "Fetch the model again" if family is None else f"Check that the given family describes {family.architecture}"
    )
    check_shapes(shapes, config, source, remedy)
    _warn_of_the_rest(settings, config, shapes, source)
    tensors = LazyTensors({name: loaders[name] for name in expected_shapes(config)})
    generation = read_json(directory / "generation_config.json")
    tokenizer = load_tokenizer(directory, of_encoder=not config.predicts)
    if tokenizer is not None and not config.predicts:
        tokenizer = encoder_tokenizer(tokenizer, directory, config)
    eos_ids = _eos_ids(generation, settings, tokenizer, source)
    paths = tuple(file.path for file in files)
    classifier = _classifier(directory, settings, owners, config, source)
    heads = EncoderHeads()
    if not config.predicts:
        heads = read_heads(settings, _unread(owners), config, tokenizer, directory)
    both_ways = config.both_ways and settings.get("model_type") not in PREFIX_ATTENTION
    decisions, answers = read_decision_form(directory), read_answers(whole)
    uses = Uses(
        generates,
        read_embedding(whole),
        heads.texts if classifier is None else classifier,
        heads.tokens,
        heads.words,
        decisions,
        answers,
        both_ways,
    )
    formats = formats_of(files)
    kind = str(settings.get("model_type") or "")
    images = image_processor(
        tower_kind(settings),
        directory,
        settings,
        {name: read_json(directory / f"{name}.json") for name in IMAGE_SETTINGS},
        tokenizer,
    )
    vision = _tower(settings, owners, config, source)
    tokenizer = with_places(tokenizer, images) if vision is not None else tokenizer
    config = config if vision is None else with_coordinates(settings, config, f"{source}/config.json")
    return Checkpoint(
        source,
        config,
        tensors,
        eos_ids,
        tokenizer,
        generation,
        paths,
        uses,
        formats,
        kind,
        images=images,
        vision=vision,
        draft_head=_draft_head(settings, config, owners),
    )


def _warn_of_the_rest(settings: Mapping[str, Any], config: ModelConfig, names: Collection[str], source: str) -> None:
    """Warn of layers and of a vision tower in the files, unknown to their config, which the model leaves out."""
    beyond = re.compile(rf"{re.escape(config.names.layers)}\.(\d+)\.")
    counts = [int(match[1]) + 1 for name in names if (match := beyond.match(name))]
    heads = sum(int(part.get("num_nextn_predict_layers") or 0) for part in text_config_of(settings).configs)
    if counts and max(counts) > config.num_layers + heads:
        warn(
            f"{source}: its config has {config.num_layers} layers, and its weights have {max(counts)}: the layers from "
            f"{config.num_layers} on are left out. Fetch the config of these weights"
        )
    pictured = [name for name in names if _OF_TOWERS.search(name)]
    if pictured and not any("vision" in key for key in settings):
        warn(
            f"{source}: its weights have a vision tower ({pictured[0]} and other tensors), and its config has none: "
            "the tower is left out. Fetch the config of these weights"
        )


def _draft_head(
    settings: Mapping[str, Any], config: ModelConfig, owners: Owners
) -> tuple[ModelConfig, LazyTensors] | None:
    """Return the structure and the tensors of the model with its draft head, or None if the files lack a tensor."""
    head = draft_head_of(text_config_of(settings), config)
    if head is None:
        return None
    config = replace(config, draft_head=head)
    expected = expected_shapes(config)
    shapes, loaders = _stored(owners, expected)
    if any(shapes.get(name) != shape for name, shape in expected.items()):
        return None
    return config, LazyTensors({name: loaders[name] for name in expected})


def _with_quantization(settings: Mapping[str, Any], directory: Path) -> Mapping[str, Any]:
    """Return the text model's config with its quantization, which older files of ModelOpt have beside it."""
    config = text_config_of(settings).settings
    if method_of(config) is None and read_json(directory / "hf_quant_config.json"):
        return {**config, "quantization_config": {"quant_method": "modelopt"}}
    return config


def _classifier(
    directory: Path, settings: Mapping[str, Any], owners: Owners, config: ModelConfig, source: str
) -> Classifier | None:
    if not is_classifier(settings) or not config.predicts:
        return None
    base = config.names.base
    layers = config.names.layers.removeprefix(base)  # in files of base models
    names = [name for name in owners if not name.startswith((base, f"{layers}."))]
    return read_classifier(
        settings, _loaders(owners, names), config.hidden_size, read_activation(settings, directory), source
    )


def _tower(settings: Mapping[str, Any], owners: Owners, config: ModelConfig, source: str) -> TowerFiles | None:
    """Return the vision tower, unless the files have the text model alone."""
    tower = tower_config(settings, config.hidden_size, f"{source}/config.json")
    if tower is None:
        return None
    shapes = {name: file.shapes[stored_name] for name, (file, stored_name) in owners.items()}
    check_counts(shapes, tower, f"{source}: its vision tower")
    names = own_names(tower, shapes)
    loaders = _loaders(owners, names.values())
    return tower_files(tower, names, shapes, loaders, source) if loaders else None


def _with_head(
    config: ModelConfig, settings: Mapping[str, Any], owners: Owners, is_base: bool, source: str
) -> tuple[ModelConfig, bool]:
    """Return the config with the head of the file, and whether the model predicts tokens with it.

    Classifiers have no such head, and base models may have none.
    """
    if not config.predicts:
        return config, False
    head, _ = head_and_embedding(config)
    if is_classifier(settings) or (head not in owners and not config.tied_embeddings and is_base):
        return replace(config, tied_embeddings=True), False  # so that no head is expected
    if head not in owners and may_be_tied(settings):
        return replace(config, tied_embeddings=True), True
    if has_separate_head(config, LazyTensors(_loaders(owners, head_and_embedding(config)))):
        if False not in tie_flags(settings):  # flags that disagree leave it to the file
            warn(f"{source}: its config says tie_word_embeddings, but the file has a separate head, which is used")
        return replace(config, tied_embeddings=False), True
    return config, True


def _embeds(directory: Path) -> bool:
    """Return True if a directory describes a model for embeddings."""
    return is_present(directory / "modules.json")


def _loaders(owners: Owners, names: Collection[str]) -> dict[str, Loader]:
    """Return loaders for the given tensors, if the files contain them."""
    return {name: file.loader(stored_name) for name, (file, stored_name) in owners.items() if name in names}


def _unread(owners: Owners) -> dict[str, Loader]:
    """Return loaders for all tensors, among them buffers of integers, which fail when they are read."""

    def read(file: SafetensorsFile, stored_name: str) -> Tensor:
        return file.loader(stored_name)()

    return {name: partial(read, *owner) for name, owner in owners.items()}


def _stored(owners: Owners, expected: Shapes) -> tuple[dict[str, tuple[int, ...]], dict[str, Loader]]:
    """Return the shapes of all stored tensors, and the loaders of the expected ones, both with stacks as expected."""
    shapes = {name: file.shapes[stored_name] for name, (file, stored_name) in owners.items()}
    loaders = _loaders(owners, expected)
    for name in _transposed_stacks(shapes, expected):
        shapes[name], loaders[name] = expected[name], partial(_transposed, loaders[name])
    return shapes, loaders


def _transposed_stacks(shapes: Shapes, expected: Shapes) -> list[str]:
    """Return the names of tensors of all experts stored as (expert, in, out) instead of (expert, out, in).

    Published files of some families have one layout, and files saved by newer transformers the other.
    """
    turned = {name: (shape[0], shape[2], shape[1]) for name, shape in expected.items() if len(shape) == 3}
    return [name for name, shape in turned.items() if shapes.get(name) == shape != expected[name]]


def _transposed(loader: Loader) -> Tensor:
    """Return a stack of transposed matrices. Quantized ones are computed when they are copied, one at a time."""
    stack = loader()
    if isinstance(stack, Stack):
        return Stack(tuple(map(_transposed_matrix, stack.members)))
    return np.swapaxes(np.asarray(stack), 1, 2)


def _transposed_matrix(matrix: Tensor) -> Quantized:
    inputs, outputs = matrix.shape
    return Quantized(inputs, range(outputs), lambda rows: np.asarray(matrix).T[rows])


def _owners(files: Sequence[SafetensorsFile], config: ModelConfig) -> tuple[Owners, bool]:
    """Return the owner of each tensor, and whether the names are those of a model without a head."""
    stored = {name: file for file in files for name in file.shapes}
    names = stored_names(stored, config.names)
    return {name: (stored[place], place) for name, place in names.by_name.items()}, names.is_base


def _eos_ids(
    generation: Mapping[str, Any], settings: Mapping[str, Any], tokenizer: Tokenizer | None, source: str
) -> frozenset[int]:
    """Return the end-token ids from generation_config.json, config.json and the tokenizer together.

    Any of the files may lack one: the end of a turn is often only in one, and the end of a text in another.
    """
    ids = [*end_tokens(generation), *end_tokens(settings)]
    if wrong := [token for token in ids if not isinstance(token, int)]:
        raise CheckpointError(f"{source}: eos_token_id must be a token id or a list of them, got {wrong[0]!r}")
    tokenizer_eos = (
        None if tokenizer is None or not tokenizer.eos_token else tokenizer.backend.token_to_id(tokenizer.eos_token)
    )
    return frozenset(ids if tokenizer_eos is None else [*ids, tokenizer_eos])
