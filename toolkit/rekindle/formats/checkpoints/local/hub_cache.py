"""The models in the cache of the Hugging Face hub, by snapshot, without a question to the hub."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from rekindle.formats.checkpoints.hub.cached import cached_path
from rekindle.formats.checkpoints.hub.names import HubModel
from rekindle.formats.checkpoints.local.folders import models_of
from rekindle.formats.checkpoints.local.listing import Listing, is_file, is_folder
from rekindle.formats.checkpoints.local.model import StoredModel, missing

PREFIX: Final = "huggingface:"
_REPOSITORY: Final = "models--"
_FOLDERS: Final = 3
"""Levels of folders with GGUF files in a snapshot."""
_FILES: Final = 10_000
"""Most files of a snapshot."""


def cached_models(listing: Listing) -> Iterator[StoredModel]:
    """Yield the models of all snapshots; names have the branch or the commit, except for "main".

    The hub's library is not asked, because it looks at each file of each data set.
    """
    from huggingface_hub import constants

    for repository in listing.entries(Path(constants.HF_HUB_CACHE)):
        if repository.name.startswith(_REPOSITORY) and is_folder(repository):
            name, branches = (
                repository.name.removeprefix(_REPOSITORY).replace("--", "/"),
                _branches(repository, listing),
            )
            for snapshot in filter(is_folder, listing.entries(Path(repository.path, "snapshots"))):
                names = branches.get(snapshot.name, [snapshot.name])
                suffix = "" if "main" in names else f"@{min(names)}"
                yield from _models(f"{PREFIX}{name}", suffix, Path(snapshot.path), listing)


def find_in_cache(name: str) -> Path:
    """Return the directory or the GGUF file of a model in the cache, by its id and optional revision.

    Raises:
        ModelNotFound: the cache has no such model.
    """
    from huggingface_hub import constants

    model = HubModel.of(name)
    path = None if model is None else cached_path(model)
    if path is not None:
        return path
    listing = Listing()
    models = list(cached_models(listing))
    for each in models:
        if each.name.casefold() == f"{PREFIX}{name}".casefold():
            return each.path
    remedy = f"`hf download {name.partition('@')[0]}` downloads it; HF_HUB_CACHE names another cache"
    names = [each.name for each in models]
    raise missing(
        PREFIX + name, "the Hugging Face cache", [Path(constants.HF_HUB_CACHE)], names, remedy, listing.skipped
    )


def _models(name: str, suffix: str, snapshot: Path, listing: Listing) -> Iterator[StoredModel]:
    """Yield the models of a snapshot: its directory, and the GGUF files in all folders."""
    for folder, entries in listing.below(snapshot, _FOLDERS, _FILES):
        is_root = folder == snapshot
        place = name if is_root else f"{name}/{folder.relative_to(snapshot).as_posix()}"
        for model in models_of(folder, entries, place, alone=False):
            if is_root or model.path != folder:
                yield replace(model, name=f"{model.name}{suffix}")


def _branches(repository: "os.DirEntry[str]", listing: Listing) -> dict[str, list[str]]:
    """Return the branches and tags of a repository by commit."""
    root, branches = Path(repository.path, "refs"), dict[str, list[str]]()
    for folder, entries in listing.below(root, _FOLDERS, _FILES):
        for file in filter(is_file, entries):
            with suppress(OSError, ValueError):
                commit = Path(file.path).read_text(encoding="utf-8").strip()
                branches.setdefault(commit, []).append((folder / file.name).relative_to(root).as_posix())
    return branches
