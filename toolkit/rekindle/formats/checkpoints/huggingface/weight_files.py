"""Weight files of a model directory: one safetensors file, or several with or without an index."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rekindle.core.errors import CheckpointError
from rekindle.formats.checkpoints.huggingface.safetensors_file import SafetensorsFile, open_safetensors
from rekindle.formats.model_file import inside, is_present, read_json

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_OTHERS: Final = ("consolidated", "adapter_", "optimizer", "scheduler", "random_states")
"""Beginnings of names of safetensors files in other layouts or without weights."""
_PICKLED: Final = (".bin", ".pt", ".pth", ".ckpt")
PICKLED: Final = (
    "files of PyTorch's pickle may run code, and are not read. Convert the model: in transformers, "
    'AutoModelForCausalLM.from_pretrained("DIRECTORY").save_pretrained("ANOTHER") and the same with AutoTokenizer; '
    "or open a GGUF file of it"
)
"""The remedy for a model in such files, as the end of a message."""


def open_weight_files(directory: Path) -> list[SafetensorsFile]:
    """Open the weights in a directory: the files of an index, else model.safetensors, else all shards of one model.

    A single file under another name is opened, too.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt; the index names a file outside of the directory; or
            the directory has the weights of no model or of several models.
    """
    if is_present(directory / _INDEX):
        return _indexed(directory)
    if is_present(directory / _SINGLE):
        return [open_safetensors(directory / _SINGLE)]
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    models = defaultdict[str, list[str]](list)
    for name in names:
        if not name.startswith(_OTHERS):
            models[match[1] if (match := _SHARD.fullmatch(name)) else name].append(name)
    if len(models) == 1:
        ((_, shards),) = models.items()
        check_complete(directory, shards)
        return [open_safetensors(directory / name) for name in shards]
    if models:
        first = ", ".join(shards[0] for shards in models.values())
        raise CheckpointError(
            f"{directory} has the weights of several models ({first:.200}) and no {_INDEX}: leave one in the "
            f"directory, or call it {_SINGLE}"
        )
    raise CheckpointError(_without_weights(directory, names))


def _indexed(directory: Path) -> list[SafetensorsFile]:
    """Open all files in the index, and check their tensors."""
    index = directory / _INDEX
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise CheckpointError(f'{index}: expected an object "weight_map" of tensor names to file names')
    files = {}
    for shard in sorted(set(places.values())):
        path = inside(directory, shard, _INDEX)
        if not is_present(path):
            raise CheckpointError(f"{directory}: the shard {shard} of {_INDEX} is missing. Fetch it again")
        files[shard] = open_safetensors(path)
    for name, shard in places.items():
        if name not in files[shard].shapes:
            raise CheckpointError(f"{directory / shard}: missing {name}, expected there by {_INDEX}")
    return list(files.values())


def check_complete(directory: Path, shards: Sequence[str]) -> None:
    """Reject shards whose names count more files than there are.

    Raises:
        CheckpointError: a shard is missing.
    """
    match = _SHARD.fullmatch(shards[0])
    if match is None:
        return
    expected = [f"{match[1]}-{number + 1:05}-of-{match[3]}.safetensors" for number in range(int(match[3]))]
    if missing := [name for name in expected if name not in shards]:
        raise CheckpointError(f"{directory}: the shard {missing[0]} is missing. Fetch it again")


def _without_weights(directory: Path, names: list[str]) -> str:
    """Return the message for a directory without weights in a supported layout."""
    if any(name.startswith("adapter_") for name in names):
        return (
            f"{directory} has an adapter (adapter_model.safetensors) without its model: merge them with PEFT's "
            "merge_and_unload(), save the result with save_pretrained, and open that directory"
        )
    if any(name.startswith("consolidated") for name in names):
        return (
            f"{directory} has its weights only in Mistral's own layout (consolidated.safetensors): fetch the files "
            "model*.safetensors of the same repository, or open a GGUF file of the model"
        )
    if others := pickled_files(directory):
        return f"{directory} has no safetensors, but {', '.join(others[:2])}: {PICKLED}"
    return f"{directory} has neither {_SINGLE} nor {_INDEX}, so it has no weights. Fetch the model again"


def is_pickled(path: Path) -> bool:
    """Return True for a file of PyTorch's pickle, by its name."""
    return path.suffix.lower() in _PICKLED


def pickled_files(directory: Path) -> list[str]:
    """Return the names of files of PyTorch's pickle in a directory."""
    return sorted(path.name for path in directory.iterdir() if is_pickled(path))
