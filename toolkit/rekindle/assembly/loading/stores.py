"""The stores of a session in the cache directory, by its `restore` setting."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.assembly.loading.blueprint import Blueprint
from rekindle.assembly.loading.identity import Identity
from rekindle.assembly.programs.restore_report import RestoreReport, difference_text, part_label
from rekindle.assembly.weights.keeping import Keeper, is_worth_keeping
from rekindle.core.concurrency.warning import warn
from rekindle.core.device.programs.functions import Key, program_name
from rekindle.core.device.programs.store import ProgramStore
from rekindle.core.errors import NotRestored, StorageError, UnsafeStorage
from rekindle.core.page import StoredPage
from rekindle.core.store.directory import cache_dir, require_private
from rekindle.core.store.picture_store import PictureStore
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.core.store.validity import Difference, shorten
from rekindle.core.store.weight_store import WeightStore
from rekindle.settings.engine import Restore, Settings

PROGRAMS: Final = "programs"
SNAPSHOTS: Final = "snapshots"
IMAGES: Final = "images"
WEIGHTS: Final = "weights"
"""Directory names of the stores in the cache directory."""
IMAGES_SHARE: Final = 8
"""Embeddings of images take at most this part of `disk_cache_bytes`, beside the pages."""


def store_directory(restore: Restore) -> Path | None:
    """Return the cache directory; None if the setting disables it, or it cannot be used.

    Raises:
        UnsafeStorage: another user could have written its content.
    """
    if restore == "off":
        return None
    try:
        directory = cache_dir()
        for name in (PROGRAMS, SNAPSHOTS, IMAGES, WEIGHTS):
            with suppress(OSError):
                require_private((directory / name).resolve())
        return directory
    except UnsafeStorage:
        raise
    except StorageError as error:
        warn(f"nothing is restored, and nothing will be: {error}")
        return None


def program_store(directory: Path, blueprint: Blueprint) -> ProgramStore:
    """Return the store of a model's programs."""
    model = blueprint.checkpoint.source
    return ProgramStore(directory, blueprint.program_keys(), blueprint.place.devices, model=model)


def require_all(store: ProgramStore | None, keys: Sequence[Key]) -> None:
    """Require all programs to be in the store.

    Raises:
        NotRestored: a program is not stored; the message has the differences from the most similar stored key.
    """
    missing = store.missing(keys) if store is not None else list(keys)
    if not missing:
        return
    reasons = store.explain(missing[0]) if store is not None else None
    raise NotRestored(
        f'restore="require" needs every program in the executable store, and {len(missing)} of {len(keys)} are not '
        f"there, such as {program_name(missing[0])!r}{_most_like(reasons or {})}. "
        'Open once with restore="auto", or run `rekindle precompile`'
    )


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of one model, with their content from earlier sessions.

    Attributes:
        programs: the executable store; None if programs are not stored.
        program_keys: programs of the session, in the order of their preparation.
        compile_seconds: compile time of each stored program, by its key; None if unknown.
        snapshot: the store of the prefix cache; None if pages are not stored.
        images: the store of embeddings of images; None for a text model, or if pages are not stored.
        pages: stored pages, parents before children.
        differences: differences between the session's snapshot key and the most similar stored one; empty without any.
    """

    programs: ProgramStore | None
    program_keys: Sequence[Key]
    compile_seconds: Mapping[Key, float | None]
    snapshot: SnapshotStore | None
    images: PictureStore | None
    pages: Sequence[StoredPage]
    differences: Mapping[str, Difference]

    def restore_report(self, page_size: int, seconds: float) -> RestoreReport:
        """Return the report on restored state, given the tokens per page and the seconds taken by opening."""
        pages = sum(not page.is_state for page in self.pages)
        return RestoreReport(
            stored=len(self.compile_seconds),
            programs=0,
            compiled=0,
            nodes=pages,
            tokens=pages * page_size,
            seconds=seconds,
            compile_seconds=sum(filter(None, self.compile_seconds.values())),
            states=len(self.pages) - pages,
            differences={part: shorten(pair) for part, pair in self.differences.items()},
        )


def open_stores(
    directory: Path | None, lanes: Sequence[Blueprint], identity: Identity, settings: Settings
) -> list[Stores]:
    """Open the stores of a model for each lane. Give a warning about a snapshot that cannot be used.

    Args:
        directory: the cache directory, or None.
        lanes: blueprints of the engine's lanes.
        identity: the identity of the engine.

    Raises:
        UnsafeStorage: another user could have written their content.
        NotRestored: `restore="require"`, and not all programs are stored.
    """
    stores: list[Stores] = []
    for blueprint in lanes:
        programs = open_programs(directory, blueprint)
        snapshot = _open_snapshot(directory, blueprint, identity, settings.disk_cache_bytes)
        images = None if snapshot is None else _open_images(directory, blueprint, identity, settings.disk_cache_bytes)
        differences = {} if snapshot is None or stores else _explain(snapshot, blueprint.checkpoint.source)
        pages = () if snapshot is None else snapshot.index()
        keys = blueprint.all_programs(cached=bool(pages))
        compile_seconds = {} if programs is None else programs.compile_seconds(keys)
        if settings.restore == "require":
            require_all(programs, keys)
        stores.append(Stores(programs, keys, compile_seconds, snapshot, images, pages, differences))
    return stores


def open_programs(directory: Path | None, blueprint: Blueprint) -> ProgramStore | None:
    """Open the store of the model's programs in the cache directory; None without a directory."""
    if directory is None:
        return None
    return program_store(directory / PROGRAMS, blueprint)


def open_keeper(directory: Path | None, blueprint: Blueprint, identity: Identity, settings: Settings) -> Keeper:
    """Return the keeper of a model's converted weights; one that keeps nothing if they are not worth it.

    Args:
        directory: the cache directory, or None.
    """
    checkpoint, capacity = blueprint.checkpoint, settings.weight_cache_bytes
    if directory is None or not capacity or not is_worth_keeping(checkpoint, blueprint.form, blueprint.place):
        return Keeper(None)
    if identity.is_unrepeated("converted"):
        return Keeper(None)
    store = WeightStore(directory / WEIGHTS, identity.weights_key(), checkpoint.source, capacity)
    return Keeper(store, checkpoint.stamps)


def _open_snapshot(
    directory: Path | None, blueprint: Blueprint, identity: Identity, capacity_bytes: int
) -> SnapshotStore | None:
    """Open the snapshot of a model's prefix cache; None if the cache is not persistent."""
    if directory is None or not blueprint.limits.pool.snapshots:
        return None
    return SnapshotStore(directory / SNAPSHOTS, identity.pages_key(), blueprint.checkpoint.source, capacity_bytes)


def _open_images(
    directory: Path | None, blueprint: Blueprint, identity: Identity, capacity_bytes: int
) -> PictureStore | None:
    """Open the store of embeddings of images; None for a text model."""
    if directory is None or not blueprint.limits.picture_rows:
        return None
    capacity = capacity_bytes // IMAGES_SHARE
    return PictureStore(directory / IMAGES, identity.images_key(), blueprint.checkpoint.source, capacity)


def _explain(snapshot: SnapshotStore, model: str) -> Mapping[str, Difference]:
    """Return the differences between a snapshot's key and the stored one, and give a warning about them."""
    differences = snapshot.explain() or {}
    if differences:
        parts = " and ".join(map(part_label, differences))
        warn(
            f"the stored prefixes of {Path(model).stem} are not used, as they differ in {parts}; new ones are stored "
            "beside them"
        )
    return differences


def _most_like(differences: Mapping[str, Difference]) -> str:
    parts = "; ".join(difference_text(part, *shorten(pair)) for part, pair in differences.items())
    return f", as they differ in {parts}" if parts else ""
