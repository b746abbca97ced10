"""The models in folders: directories with safetensors, and GGUF files."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from rekindle.formats.checkpoints.local.listing import Entries, Listing, is_folder
from rekindle.formats.checkpoints.local.model import StoredModel, bytes_of, first_parts, is_model_directory

DEPTH: Final = 3
"""Levels of folders in a search."""
MOST: Final = 20_000
"""Entries at the end of a search."""


def models_of(folder: Path, entries: Entries, name: str, *, alone: bool = True) -> Iterator[StoredModel]:
    """Yield the models of one folder.

    Args:
        folder: the folder.
        entries: its entries.
        name: the name of a model in it, and of its directory.
        alone: whether a single GGUF file has this name, without its own.
    """
    names = [entry.name for entry in entries if not is_folder(entry)]
    files, is_directory = first_parts(folder / each for each in names), is_model_directory(names)
    if is_directory:
        yield StoredModel(name, folder, bytes_of(folder, names))
    for file in files:
        own = name if alone and len(files) == 1 and not is_directory else f"{name}/{file.name}"
        yield StoredModel(own, file, bytes_of(file, names))


def models_below(root: Path, listing: Listing) -> Iterator[StoredModel]:
    """Yield the models of a folder and of its folders, with their paths as names."""
    for folder, entries in listing.below(root, DEPTH, MOST):
        for model in models_of(folder, entries, "", alone=False):
            yield replace(model, name=_path_text(model.path))


def _path_text(path: Path) -> str:
    """Return a path as a name for `open`, unlike any other name: a relative one begins with a dot."""
    text = str(path)
    return text if path.is_absolute() or text.startswith(os.curdir) else os.path.join(os.curdir, text)
