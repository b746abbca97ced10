"""Opening of a Hugging Face model directory: config.json, safetensors, and an optional tokenizer."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rekindle.core.checkpoints.checkpoint import Checkpoint, LazyTensors, check_shapes
from rekindle.core.checkpoints.huggingface.classifier import is_classifier, read_classifier
from rekindle.core.checkpoints.huggingface.json_file import read_json
from rekindle.core.checkpoints.huggingface.quantized.formats import with_quantized
from rekindle.core.checkpoints.huggingface.safetensors_file import SafetensorsFile, open_safetensors
from rekindle.core.checkpoints.huggingface.sentence_embedding import read_embedding
from rekindle.core.checkpoints.huggingface.tokenizer import load_tokenizer
from rekindle.core.checkpoints.tied import has_separate_head, head_and_embedding
from rekindle.core.checkpoints.uses import Classifier, Uses
from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import CheckpointError, ModelNotFound
from rekindle.core.models.config import ModelConfig
from rekindle.core.models.decoder import expected_shapes
from rekindle.core.models.families.reading import Family
from rekindle.core.models.families.registry import parse_config
from rekindle.core.text.tokenizer import Tokenizer
from rekindle_kernels.blocks import Tensor

Loader = Callable[[], Tensor]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


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
    source = str(directory)
    if not (directory / "config.json").is_file():
        gguf_files = sorted(directory.glob("*.gguf"))
        hint = f"; to open the GGUF file in it, pass its path: {gguf_files[0]}" if gguf_files else ""
        raise ModelNotFound(f"{source} is not a model directory: it has no config.json{hint}")
    settings = read_json(directory / "config.json")
    config = parse_config(settings, f"{source}/config.json", family)
    files = with_quantized(_weight_files(directory), settings, source)
    owners = _owners(files)
    generates = _generates(settings, owners, config)
    if not generates:  # without a head, the config must not require one
        config = replace(config, tied_embeddings=True)
    elif has_separate_head(config, LazyTensors(_loaders(owners, head_and_embedding(config)))):
        warn(f"{source}: its config says tie_word_embeddings, but the file has a separate head, which is used")
        config = replace(config, tied_embeddings=False)
    shapes = {name: file.shapes[stored_name] for name, (file, stored_name) in owners.items()}
    loaders = _loaders(owners, expected_shapes(config))
    remedy = (
        "Fetch the model again" if family is None else f"Check that the given family describes {family.architecture}"
    )
    check_shapes(shapes, config, source, remedy)
    tensors = LazyTensors({name: loaders[name] for name in expected_shapes(config)})
    generation = read_json(directory / "generation_config.json")
    tokenizer = load_tokenizer(directory)
    eos_ids = _eos_ids(generation, settings, tokenizer, source)
    paths = tuple(file.path for file in files)
    uses = Uses(generates, read_embedding(directory), _classifier(settings, files, config, source))
    return Checkpoint(source, config, tensors, eos_ids, tokenizer, generation, paths, uses)


def _classifier(
    settings: Mapping[str, Any], files: Sequence[SafetensorsFile], config: ModelConfig, source: str
) -> Classifier | None:
    if not is_classifier(settings):
        return None
    names = [(file, name) for file in files for name in file.shapes if not name.startswith(("model.", "layers."))]
    return read_classifier(settings, {name: file.loader(name) for file, name in names}, config.hidden_size, source)


def _generates(
    settings: Mapping[str, Any], owners: Mapping[str, tuple[SafetensorsFile, str]], config: ModelConfig
) -> bool:
    """Return True if a model has a head for next tokens. Classifiers have none, and base models may have none."""
    if is_classifier(settings):
        return False
    base = not any(stored_name.startswith("model.") for _, stored_name in owners.values())
    return config.tied_embeddings or f"{config.names.head}.weight" in owners or not base


def _loaders(owners: Mapping[str, tuple[SafetensorsFile, str]], names: Collection[str]) -> dict[str, Loader]:
    """Return loaders for the given tensors, if the files contain them."""
    return {name: file.loader(stored_name) for name, (file, stored_name) in owners.items() if name in names}


def _owners(files: Sequence[SafetensorsFile]) -> dict[str, tuple[SafetensorsFile, str]]:
    """Return each tensor's file and its name in the file. Base models omit the prefix "model." in files."""
    owners = {name: (file, name) for file in files for name in file.shapes}
    if any(name.startswith("model.") for name in owners):
        return owners
    return {name if name.startswith("lm_head.") else f"model.{name}": owner for name, owner in owners.items()}


def _weight_files(directory: Path) -> list[SafetensorsFile]:
    if (directory / _INDEX).is_file():
        return _shards(directory)
    if (directory / _SINGLE).is_file():
        return [open_safetensors(directory / _SINGLE)]
    raise CheckpointError(
        f"{directory} has neither {_SINGLE} nor {_INDEX}. Only safetensors weights are read; "
        "convert others with transformers' save_pretrained"
    )


def _shards(directory: Path) -> list[SafetensorsFile]:
    """Open all files in the index, and check that each contains its tensors."""
    index = directory / _INDEX
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f'{index}: expected an object "weight_map" of tensor names to file names')
    files = {}
    for shard in sorted(set(places.values())):
        if not (directory / shard).is_file():
            raise CheckpointError(f"{directory}: the shard {shard} of {_INDEX} is missing. Fetch it again")
        files[shard] = open_safetensors(directory / shard)
    for name, shard in places.items():
        if name not in files[shard].shapes:
            raise CheckpointError(f"{directory / shard}: missing {name}, expected there by {_INDEX}")
    return list(files.values())


def _eos_ids(
    generation: Mapping[str, Any], settings: Mapping[str, Any], tokenizer: Tokenizer | None, source: str
) -> frozenset[int]:
    """Return the end-token ids from generation_config.json, or else config.json, and from the tokenizer.

    Chat-tuned checkpoints may declare their end-of-turn token only in the tokenizer.
    """
    eos = generation.get("eos_token_id")
    if eos is None:
        eos = settings.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(isinstance(token, int) for token in ids):
        raise CheckpointError(f"{source}: eos_token_id must be a token id or a list of them, got {eos!r}")
    tokenizer_eos = (
        None if tokenizer is None or not tokenizer.eos_token else tokenizer.backend.token_to_id(tokenizer.eos_token)
    )
    return frozenset(ids if tokenizer_eos is None else [*ids, tokenizer_eos])
