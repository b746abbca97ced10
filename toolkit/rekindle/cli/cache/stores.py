"""Stores in the cache directory, listed and measured without reading their entries."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rekindle.assembly.loading.stores import IMAGES, PROGRAMS, SNAPSHOTS, WEIGHTS
from rekindle.core.device.programs.store import ProgramCatalog
from rekindle.core.store import entries as disk
from rekindle.core.store.catalog import Catalog
from rekindle.core.store.directory import cache_dir
from rekindle.core.store.picture_store import PictureCatalog
from rekindle.core.store.snapshots import SnapshotCatalog
from rekindle.core.store.weight_store import WeightCatalog

MODELS: Final = "models"
STORES: Final[Mapping[str, Callable[[Path], Catalog[Any]]]] = {
    PROGRAMS: ProgramCatalog,
    SNAPSHOTS: SnapshotCatalog,
    IMAGES: PictureCatalog,
    WEIGHTS: WeightCatalog,
}


def catalog(name: str) -> Catalog[Any]:
    """Return a store by its name; raises as `path_of`."""
    return STORES[name](path_of(name))


def path_of(name: str) -> Path:
    """Return the path of a directory in the cache directory, whether or not it exists.

    Raises:
        StorageError: the cache directory cannot be used.
        UnsafeStorage: the cache directory or this one belongs to another user, or is writable by others.
    """
    path = cache_dir() / name
    return cache_dir(name) if path.is_dir() else path


def entries(name: str) -> list[Path]:
    """Return the paths of all entries of a store, or of all models."""
    if name in STORES:
        return catalog(name).paths()
    directory = path_of(name)
    return list(directory.iterdir()) if directory.is_dir() else []


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a directory; 0 if it does not exist."""
    if path.is_dir():
        return disk.size_of(path)
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def shares(max_bytes: int) -> dict[str, int]:
    """Split a bound in bytes between the stores, so that pruning to it removes the least recently used entries of all.

    Nothing is removed here.
    """
    uses = [(disk.last_used(path), disk.bytes_of(path), name) for name in STORES for path in catalog(name).paths()]
    bounds = dict.fromkeys(STORES, 0)
    for _, size, name in uses:
        bounds[name] += size
    for _, size, name in sorted(uses):
        if sum(bounds.values()) <= max_bytes:
            break
        bounds[name] -= size
    return bounds
