"""All snapshots on disk: one directory with a snapshot for each key, all of them under one bound."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.store import entries as disk
from rekindle.store.segments import Segment, open_segment, read_pages, segment_bytes, segment_paths
from rekindle.store.snapshot_key import SnapshotKey
from rekindle.store.validity import Difference

_FINGERPRINT: Final = re.compile("[0-9a-f]{64}")
_TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """One snapshot.

    Attributes:
        fingerprint: the digest of its key, and its directory's name.
        model: as a person knows it.
        parts: of its key, by name.
        pages, tokens: in all its segments.
        bytes: on disk.
        created, used: seconds since the epoch.
    """

    fingerprint: str
    model: str
    parts: dict[str, str]
    pages: int
    tokens: int
    bytes: int
    created: float
    used: float


def list_snapshots(directory: Path) -> list[SnapshotEntry]:
    """All snapshots, the most recently used first; segments whose headers are damaged do not count.

    Raises:
        UnsafeStorage: a directory or a segment belongs to another user, or is writable by others.
    """
    opened = {snapshot.name: _opened(snapshot) for snapshot in _snapshots(directory)}
    entries = [_entry(fingerprint, segments) for fingerprint, segments in opened.items() if segments]
    return sorted(entries, key=lambda entry: -entry.used)


def explain_missing(directory: Path, key: SnapshotKey, model: str) -> dict[str, Difference] | None:
    """Why a model has no snapshot, as far as its most recently used one under another key tells.

    Returns:
        The parts that differ, each with its value in `key` and there; None if this key has a snapshot, or the model
        has none at all.

    Raises:
        UnsafeStorage: as `list_snapshots`.
    """
    snapshots = _snapshots(directory)
    if segment_paths(directory / key.digest):
        return None
    known: set[Path] = set()
    for path in sorted((path for snapshot in snapshots for path in segment_paths(snapshot)), key=_newest_first):
        if path.parent in known:
            continue
        try:
            origin = open_segment(path).origin
        except (disk.Damaged, OSError):
            continue
        if origin.model == model:
            return key.explain(origin.parts)
        known.add(path.parent)
    return None


def verify(directory: Path) -> dict[str, str]:
    """What is wrong with each segment that cannot be used, by its path below the directory; every page is read.

    Raises:
        UnsafeStorage: the directory itself belongs to another user, or is writable by others.
    """
    wrong = {}
    for path in _segments(directory):
        found = disk.identity(path)
        try:
            segment = open_segment(path)
            read_pages(segment, range(len(segment.pages)))
        except Exception as error:  # whatever Orbax may say of it
            if found is not None and disk.identity(path) == found:  # or another process removed it under our hands
                wrong[path.relative_to(directory).as_posix()] = str(error)
    return wrong


def prune(directory: Path, max_bytes: int) -> int:
    """Remove the least recently used segments until the rest fits, and what killed processes left behind.

    Returns:
        How many bytes are still stored.
    """
    for snapshot in _snapshots(directory):
        disk.remove_left_behind(snapshot)
    evict(directory, max_bytes)
    return sum(map(segment_bytes, _segments(directory)))


def clear(directory: Path) -> None:
    """Remove all snapshots."""
    for snapshot in _snapshots(directory):
        for path in segment_paths(snapshot):
            disk.remove(path)
        disk.remove_left_behind(snapshot, older_than=0)
        try:
            snapshot.rmdir()
        except OSError:  # something else lies there, or another process writes to it
            continue


def evict(directory: Path, max_bytes: int) -> list[Path]:
    """Remove the least recently used segments until the rest takes at most `max_bytes`; those that were removed."""
    stored = sorted((disk.last_used(path), path) for path in _segments(directory))
    total = sum(segment_bytes(path) for _, path in stored)
    removed = []
    for _, path in stored:
        if total <= max_bytes:
            break
        disk.remove(path)
        removed.append(path)
        total -= segment_bytes(path)
    return removed


def _snapshots(directory: Path) -> list[Path]:
    """The directories of all snapshots; what else lies there is left alone."""
    try:
        disk.require_private(directory.resolve())
        return [
            path for path in directory.iterdir()
            if _FINGERPRINT.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        ]  # fmt: skip
    except (disk.Damaged, OSError):
        return []


def _segments(directory: Path) -> list[Path]:
    return [path for snapshot in _snapshots(directory) for path in segment_paths(snapshot)]


def _opened(snapshot: Path) -> list[Segment]:
    segments = []
    for path in segment_paths(snapshot):
        try:
            segments.append(open_segment(path))
        except (disk.Damaged, OSError):
            continue
    return segments


def _entry(fingerprint: str, segments: list[Segment]) -> SnapshotEntry:
    pages = [page for segment in segments for page in segment.pages]
    return SnapshotEntry(
        fingerprint,
        segments[0].origin.model,
        segments[0].origin.parts,
        pages=len(pages),
        tokens=sum(len(page.key) // _TOKEN_BYTES for page in pages),
        bytes=sum(segment.bytes for segment in segments),
        created=min(segment.created for segment in segments),
        used=max(disk.last_used(segment.path) for segment in segments) / 1e9,
    )


def _newest_first(path: Path) -> int:
    return -disk.last_used(path)
