"""The models of this machine, for `open`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rekindle.assembly.fitting import Machine, this_machine
from rekindle.assembly.loading.choosing import TOKENS
from rekindle.core.errors import InvalidRequest, StorageError
from rekindle.core.words import size_text
from rekindle.formats.checkpoints.embedded import NAME, stored_path
from rekindle.formats.checkpoints.local.folders import models_below
from rekindle.formats.checkpoints.local.header import header_of
from rekindle.formats.checkpoints.local.listing import Listing
from rekindle.formats.checkpoints.local.model import StoredModel
from rekindle.formats.checkpoints.local.sources import sources
from rekindle.results.local_models import LocalModel, LocalModels

_PLACES: Final = {"ollama": "Ollama", "lmstudio": "LM Studio", "huggingface": "Cache of the Hugging Face hub"}
"""The programs for people, by the prefixes of names."""


def models(*folders: str | os.PathLike[str]) -> LocalModels:
    """List the models of this machine: of Ollama, LM Studio, the hub's cache and of folders.

    No weights are read, only the beginnings of files, so a model in the list may still be refused by `open`. Unreadable
    folders are skipped, with a line about each.

    Args:
        *folders: the folders to search, three levels deep; the current one if there are none.

    Returns:
        The models: a sequence with the size of each, about its memory, and the line that opens it. The
        last expression of a cell shows it as a card.

    Raises:
        InvalidRequest: a folder does not exist, or is no path.
    """
    return list_models(list(map(_folder, folders)) or [Path()])


def list_models(
    folders: Sequence[Path], *, part: str = "", tokens: int = TOKENS, dtype: str | None = None
) -> LocalModels:
    """Return the models of this machine with a part in the name.

    Args:
        folders: the folders to search.
        part: the part of the name, in any case.
        tokens: the tokens of context in the memory of a model.
        dtype: the dtype of weights; None for the default of `open`.
    """
    listing, machine = Listing(), this_machine(dtype)
    entries = [
        _entry(place, model, machine, tokens)
        for place, model in _stored(folders, listing)
        if part.casefold() in model.name.casefold()
    ]
    memory = "unknown memory" if machine.memory is None else f"{size_text(machine.memory)} of memory"
    return LocalModels(entries, f"{machine.text}: {memory}", tokens, listing.skipped)


def _folder(folder: str | os.PathLike[str]) -> Path:
    try:
        path = Path(folder).expanduser()
        if path.is_dir():
            return path
    except (TypeError, ValueError, RuntimeError) as error:  # the last for a user without a home directory
        raise InvalidRequest(f"models takes the paths of folders, got {folder!r:.80} ({error})") from error
    except OSError:  # the listing tells it
        return path
    raise InvalidRequest(
        f"there is no folder {os.fspath(folder)!r:.200}; models() without one searches the current folder"
    )


def _stored(folders: Sequence[Path], listing: Listing) -> Iterator[tuple[str, StoredModel]]:
    """Yield the models of all programs and folders, each file once, after the name of its place."""
    paths = set[str]()
    for place, model in _all(folders, listing):
        path = os.path.realpath(model.path)
        if place in _PLACES.values() or path not in paths:
            yield place, model
        paths.add(path)


def _all(folders: Sequence[Path], listing: Listing) -> Iterator[tuple[str, StoredModel]]:
    try:
        path = stored_path()
    except StorageError as error:
        path = None
        listing.skipped.append(str(error))
    if path is not None:
        yield "Rekindle", StoredModel(NAME, path, path.stat().st_size)
    for prefix, (stored, _) in sources().items():
        for model in stored(listing):
            yield _PLACES[prefix], model
    for folder in folders:
        for model in models_below(folder, listing):
            yield str(folder.absolute()), model


def _entry(place: str, model: StoredModel, machine: Machine, tokens: int) -> LocalModel:
    header = header_of(model)
    needs = None if header.refusal else machine.needs(header, model.size, tokens)
    return LocalModel(
        name=model.name,
        path=model.path.absolute(),
        place=place,
        size=model.size,
        format=" ".join(filter(None, (header.format, header.numbers))),
        architecture=header.architecture,
        needs=needs,
        fits=machine.has_room(needs),
        refusal=header.refusal,
    )
