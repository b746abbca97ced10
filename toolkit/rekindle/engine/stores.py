"""The stores of one session in the cache directory, as its `restore` setting has them."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.config import Restore
from rekindle.device.programs.key import Target
from rekindle.device.programs.lowering import Key, program_name
from rekindle.device.programs.shelf import ProgramShelf
from rekindle.device.programs.store import ProgramStore
from rekindle.engine.blueprint import Blueprint
from rekindle.errors import NotRestored, StorageError, UnsafeStorage
from rekindle.page import StoredPage
from rekindle.store.directory import cache_dir
from rekindle.store.entries import require_private
from rekindle.store.restored import difference_words
from rekindle.store.snapshot_store import SnapshotStore
from rekindle.store.snapshots import explain_missing
from rekindle.store.validity import Difference, apart

PROGRAMS: Final = "programs"
SNAPSHOTS: Final = "snapshots"
"""Directories of the stores in the cache directory."""


def store_directory(restore: Restore) -> Path | None:
    """The cache directory; None where nothing is to be restored, or nothing can be kept.

    Raises:
        UnsafeStorage: somebody else could have written what is in it.
    """
    if restore == "off":
        return None
    try:
        directory = cache_dir()
        for name in (PROGRAMS, SNAPSHOTS):
            with suppress(FileNotFoundError):
                require_private((directory / name).resolve())
        return directory
    except UnsafeStorage:
        raise
    except StorageError as error:
        warnings.warn(f"nothing is restored, and nothing will be: {error}", RuntimeWarning, stacklevel=2)
        return None


def require_all(shelf: ProgramShelf | None, keys: Sequence[Key]) -> None:
    """See that no program would have to be compiled.

    Raises:
        NotRestored: one is not stored, and how its key differs from the stored one most like it.
    """
    missing = shelf.missing(keys) if shelf is not None else list(keys)
    if not missing:
        return
    reasons = shelf.explain(missing[0]) if shelf is not None else None
    raise NotRestored(
        f'restore="require" needs every program in the executable store, and {len(missing)} of {len(keys)} are not '
        f"there, such as {program_name(missing[0])!r}{_most_like(reasons or {})}. "
        'Open once with restore="auto", or run `rekindle precompile`'
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """The snapshot of a model's prefix cache.

    Attributes:
        store: None where nothing is kept.
        pages: what an earlier session left there, parents before children.
        differences: of the key, from the stored snapshot that is most like it and cannot be used.
    """

    store: SnapshotStore | None
    pages: Sequence[StoredPage]
    differences: Mapping[str, Difference]


def open_shelf(directory: Path | None, blueprint: Blueprint) -> ProgramShelf | None:
    """The model's programs in the cache directory, if there is one."""
    if directory is None:
        return None
    target = Target.of([blueprint.device])
    store = ProgramStore(directory / PROGRAMS)
    return ProgramShelf(store, blueprint.programs, blueprint.checkpoint.config, target, [blueprint.device])


def open_snapshots(directory: Path | None, blueprint: Blueprint, capacity_bytes: int) -> Stored:
    """The model's snapshot; a warning says why, if there is one that cannot be used.

    Args:
        directory: the cache directory, if there is one.
        blueprint: of the session.
        capacity_bytes: room for the snapshots of all models.

    Raises:
        UnsafeStorage: somebody else could have written what is in it.
    """
    if directory is None or not blueprint.limits.snapshots:
        return Stored(None, (), {})
    key, model = blueprint.snapshot_key(), blueprint.checkpoint.source
    differences = explain_missing(directory / SNAPSHOTS, key, model)
    if differences:
        warnings.warn(
            f"the stored prefixes of {model} are not used{_most_like(differences)}; new ones are kept beside them",
            RuntimeWarning,
            stacklevel=2,
        )
    store = SnapshotStore(directory / SNAPSHOTS, key, model, capacity_bytes)
    return Stored(store, store.index(), differences or {})


def _most_like(differences: Mapping[str, Difference]) -> str:
    parts = "; ".join(difference_words(part, *apart(pair)) for part, pair in differences.items())
    return f", because what is stored differs in {parts}" if parts else ""
