"""What lies in the cache directory, found and measured without reading any of it."""

import re
from pathlib import Path
from typing import Final

from rekindle.engine.stores import PROGRAMS, SNAPSHOTS
from rekindle.store import entries as disk
from rekindle.store.directory import cache_dir
from rekindle.store.segments import segment_paths

MODELS: Final = "models"
STORES: Final = (PROGRAMS, SNAPSHOTS)
_DIGEST: Final = re.compile("[0-9a-f]{64}")
"""The name that a program has in its store, and a snapshot, which is a directory of segments, in its own."""


def place(name: str) -> Path:
    """A directory in the cache directory, which need not be there.

    Raises:
        StorageError: the cache directory cannot be used.
        UnsafeStorage: either belongs to another user, or is writable by others.
    """
    path = cache_dir() / name
    return cache_dir(name) if path.is_dir() else path


def entries(name: str) -> list[Path]:
    """Of a store: programs, or segments of snapshots, the least recently used first; also those that are damaged."""
    directory = place(name)
    found = [path for path in directory.iterdir() if _DIGEST.fullmatch(path.name)] if directory.is_dir() else []
    if name == SNAPSHOTS:
        found = [segment for snapshot in found if not snapshot.is_symlink() for segment in segment_paths(snapshot)]
    return sorted(found, key=disk.last_used)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a directory; 0 for what is gone."""
    if path.is_dir():
        return disk.size_of(path)
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def shares(max_bytes: int) -> dict[str, int]:
    """What each store may keep, so that the least recently used of both leave until the rest fits."""
    found = [(disk.last_used(path), size_of(path), name) for name in STORES for path in entries(name)]
    kept = dict.fromkeys(STORES, 0)
    for _, size, name in found:
        kept[name] += size
    for _, size, name in sorted(found):
        if sum(kept.values()) <= max_bytes:
            break
        kept[name] -= size
    return kept
