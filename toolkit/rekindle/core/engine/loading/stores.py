"""The stores of one session in the cache directory, according to its `restore` setting."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.core.concurrency.warning import warn
from rekindle.core.config import Restore, Settings
from rekindle.core.device.programs.lowering import Key, program_name
from rekindle.core.device.programs.store import ProgramStore
from rekindle.core.engine.loading.blueprint import Blueprint
from rekindle.core.errors import NotRestored, StorageError, UnsafeStorage
from rekindle.core.page import StoredPage
from rekindle.core.store.directory import cache_dir, require_private
from rekindle.core.store.restore_report import RestoreReport, difference_text
from rekindle.core.store.snapshot_store import SnapshotStore
from rekindle.core.store.validity import Difference, shorten

PROGRAMS: Final = "programs"
SNAPSHOTS: Final = "snapshots"
"""The directories of the two stores in the cache directory."""


def store_directory(restore: Restore) -> Path | None:
    """Return the cache directory; None if nothing is to be restored, or nothing can be kept.

    Raises:
        UnsafeStorage: somebody else could have written what is in it.
    """
    if restore == "off":
        return None
    try:
        directory = cache_dir()
        for name in (PROGRAMS, SNAPSHOTS):
            with suppress(OSError):
                require_private((directory / name).resolve())
        return directory
    except UnsafeStorage:
        raise
    except StorageError as error:
        warn(f"nothing is restored, and nothing will be: {error}")
        return None


def require_all(store: ProgramStore | None, keys: Sequence[Key]) -> None:
    """Check that no program would have to be compiled.

    Raises:
        NotRestored: a program is not stored; says how its key differs from the stored one most like it.
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
    """The stores of one model, and what earlier sessions left in them.

    Attributes:
        programs: the executable store; None if nothing is kept.
        wanted: the programs that the session prepares, in this order.
        compile_seconds: by the key of each of these that is stored, what compiling it took, if that is known.
        snapshot: the store of the prefix cache; None if nothing is kept.
        pages: those that it has, parents before children.
        differences: how its key differs from that of the stored snapshot most like it; empty if there is none.
    """

    programs: ProgramStore | None
    wanted: Sequence[Key]
    compile_seconds: Mapping[Key, float | None]
    snapshot: SnapshotStore | None
    pages: Sequence[StoredPage]
    differences: Mapping[str, Difference]

    @property
    def complete(self) -> bool:
        """Tell whether all programs that are wanted are stored."""
        return len(self.compile_seconds) == len(self.wanted)

    def found(self, page_size: int, seconds: float) -> RestoreReport:
        """Return the report of what was found, given the tokens of a page and how long opening took."""
        return RestoreReport(
            stored=len(self.compile_seconds),
            programs=0,
            compiled=0,
            nodes=len(self.pages),
            tokens=len(self.pages) * page_size,
            seconds=seconds,
            compile_seconds=sum(filter(None, self.compile_seconds.values())),
            differences={part: shorten(pair) for part, pair in self.differences.items()},
        )


def open_stores(directory: Path | None, lanes: Sequence[Blueprint], settings: Settings) -> list[Stores]:
    """Open the stores of a model for each lane. If there is a snapshot that cannot be used, warn why.

    Args:
        directory: the cache directory, if there is one.
        lanes: those of the engine that is to be built.

    Raises:
        UnsafeStorage: somebody else could have written what is in them.
        NotRestored: `restore="require"`, and not all programs are stored.
    """
    stores: list[Stores] = []
    for blueprint in lanes:
        programs = open_programs(directory, blueprint)
        snapshot = _open_snapshot(directory, blueprint, settings.disk_cache_bytes)
        differences = {} if snapshot is None or stores else _explained(snapshot, blueprint.checkpoint.source)
        pages = () if snapshot is None else snapshot.index()
        wanted = blueprint.all_programs(cached=bool(pages))
        compile_seconds = {} if programs is None else programs.compile_seconds(wanted)
        if settings.restore == "require":
            require_all(programs, wanted)
        stores.append(Stores(programs, wanted, compile_seconds, snapshot, pages, differences))
    return stores


def open_programs(directory: Path | None, blueprint: Blueprint) -> ProgramStore | None:
    """Open the store of the model's programs in the cache directory, if there is one."""
    if directory is None:
        return None
    return ProgramStore(directory / PROGRAMS, blueprint.program_keys(), blueprint.place.devices)


def _open_snapshot(directory: Path | None, blueprint: Blueprint, capacity_bytes: int) -> SnapshotStore | None:
    """Open the snapshot of a model's prefix cache, if it keeps one."""
    if directory is None or not blueprint.limits.pool.snapshots:
        return None
    return SnapshotStore(directory / SNAPSHOTS, blueprint.snapshot_key(), blueprint.checkpoint.source, capacity_bytes)


def _explained(snapshot: SnapshotStore, model: str) -> Mapping[str, Difference]:
    """Return how a snapshot's key differs from what is stored, and warn of it."""
    differences = snapshot.explain() or {}
    if differences:
        warn(f"the stored prefixes of {model} are not used{_most_like(differences)}; new ones are kept beside them")
    return differences


def _most_like(differences: Mapping[str, Difference]) -> str:
    parts = "; ".join(difference_text(part, *shorten(pair)) for part, pair in differences.items())
    return f", because what is stored differs in {parts}" if parts else ""
