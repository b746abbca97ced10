"""Catalogs of stored entries of all models: listing, verification, eviction, and removal of damaged entries."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar

from rekindle.core.concurrency.threads import ending
from rekindle.core.concurrency.warning import warn
from rekindle.core.errors import UnsafeStorage
from rekindle.core.store import entries as disk
from rekindle.core.store.directory import require_private

DEFAULT_BYTES: Final = 4 << 30
DIGEST: Final = re.compile("[0-9a-f]{64}")
"""Pattern of the names of programs and snapshots: the digest of the key."""

T = TypeVar("T")
Description = TypeVar("Description")


@dataclass(frozen=True, slots=True)
class Entry:
    """A program or snapshot, as listed by its catalog.

    Attributes:
        digest: the digest of the key.
        parts: the parts of the key, by name.
        bytes: size on disk.
        created, used: times of creation and last use, in seconds since the epoch.
        model: display name of the model of the first session with the entry; "" if unknown.
    """

    digest: str
    parts: dict[str, str]
    bytes: int
    created: float
    used: float
    model: str


class Catalog(ABC, Generic[Description]):
    """Entries of all models in one directory. Any number of threads and processes may use it concurrently.

    Methods raise `UnsafeStorage` if the directory or an entry to be read belongs to another user, or is writable by
    others. `verify` reports unsafe entries instead of raising.

    Args:
        directory: a directory for these entries alone; it may be missing.
        contents: a plural noun for the contents of the entries, used in warnings.

    Attributes:
        directory: the directory, with links resolved.
    """

    names: ClassVar = DIGEST
    """Pattern of the entries' file names."""

    def __init__(self, directory: Path, contents: str):
        self.directory = directory.resolve()
        self._contents = contents
        self._unusable: set[disk.Identity] = set()
        self._failed = False

    @abstractmethod
    def describe(self, path: Path) -> Description:
        """Return the description in an entry's header. Raise the errors of `entries.header_of`."""

    @abstractmethod
    def check(self, path: Path) -> None:
        """Read an entry completely. Raise an error, of any type, if the entry has changed since it was written."""

    def folders(self) -> list[Path]:
        """Return the directories that contain entries; none if the store does not exist."""
        try:
            require_private(self.directory)
        except OSError:
            return []
        return [self.directory]

    def paths_in(self, folder: Path) -> list[Path]:
        """Return the paths of the entries in a directory, without other files."""
        return matching_paths(folder, self.names)

    def paths(self) -> list[Path]:
        """Return the paths of all entries, most recently used first."""
        paths = [path for folder in self.folders() for path in self.paths_in(folder)]
        return sorted(paths, key=disk.last_used, reverse=True)

    def descriptions(self, paths: Iterable[Path]) -> Iterator[Description]:
        """Yield the descriptions of entries. Skip missing entries and damaged headers."""
        for path in paths:
            try:
                yield self.describe(path)
            except (disk.Damaged, OSError):
                continue

    def verify(self) -> dict[Path, str]:
        """Read all entries, and return the errors of unusable entries by path."""
        errors = {}
        for path in self.paths():
            identity = disk.identity(path)
            try:
                self.check(path)
            except Exception as error:  # tensorstore raises various errors
                if _is_same_entry(path, identity):
                    errors[path] = str(error)
        return errors

    def evict(self, max_bytes: int, keep: Collection[Path] = ()) -> list[Path]:
        """Remove the least recently used entries until the rest takes at most `max_bytes`. Return their paths.

        Temporary directories of running and killed writers count toward the total.

        Args:
            keep: entries to retain in any case.
        """
        sizes = {path: disk.bytes_of(path) for path in reversed(self.paths())}
        temporary_bytes = sum(
            disk.size_of(path) for folder in self.folders() for path in disk.temporary_entries(folder)
        )
        total, removed = temporary_bytes + sum(sizes.values()), []
        for path, size in sizes.items():
            if total <= max_bytes:
                break
            if path not in keep:
                disk.remove(path)
                removed.append(path)
                total -= size
        return removed

    def prune(self, max_bytes: int) -> None:
        """Remove the leftovers of killed processes, and evict entries until the rest takes at most `max_bytes`."""
        for folder in self.folders():
            disk.remove_leftovers(folder)
        self.evict(max_bytes)

    def clear(self) -> None:
        """Remove all entries, including those in use: their processes hold them in memory."""
        for folder in self.folders():
            for path in self.paths_in(folder):
                disk.remove(path)
            disk.remove_leftovers(folder, include_active=True)

    def read(self, path: Path, load: Callable[[], T]) -> T | None:
        """Return the result of `load`, or None after an error. A failed entry is dropped with a warning."""
        identity = disk.identity(path)
        if identity is None or identity in self._unusable:
            return None
        try:
            return load()
        except UnsafeStorage:
            raise
        except Exception as error:  # tensorstore, pickle and the device runtime raise various errors
            if _is_same_entry(path, identity) and not ending():
                self._drop(path, identity, error)
            return None

    def write(self, write: Callable[[], T]) -> T | None:
        """Return the result of `write`, or None after an error. Only the first error causes a warning."""
        try:
            return write()
        except UnsafeStorage:
            raise
        except Exception as error:  # Orbax raises various errors for a full or broken disk
            self.warn_unsaved(f"{type(error).__name__}: {error}")
            return None

    def warn_unsaved(self, reason: str) -> None:
        """Warn about a failed save, once, and not during interpreter shutdown."""
        if self._failed or ending():
            return
        self._failed = True
        warn(
            f"{self._contents} cannot be saved to {self.directory}, and will be created again next time: {reason}",
            stacklevel=4,
        )

    def drop(self, path: Path, error: Exception) -> None:
        """Drop an entry that failed after it was read, and warn."""
        identity = disk.identity(path)
        if identity is not None:
            self._drop(path, identity, error)

    def _drop(self, path: Path, identity: disk.Identity, error: Exception) -> None:
        disk.remove(path)
        self._unusable.add(identity)  # because an entry in a read-only directory stays
        warn(
            f"the {self._contents} in {path} cannot be used ({error}): they are dropped and will be created again",
            stacklevel=4,
        )


class SingleCatalog(Catalog[Entry]):
    """Catalog of entries that are found alone, each with the parts of its key in the header."""

    def describe(self, path: Path) -> Entry:
        """See `Catalog.describe`."""
        header, used = disk.header_of(path), disk.last_used(path) / 1e9
        parts, created, model = header.get("parts", {}), header.get("created", 0.0), str(header.get("model", ""))
        return Entry(path.name, parts, disk.bytes_of(path), created, used, model)

    def entries(self) -> list[Entry]:
        """Return all entries, the most recently used first, without those with damaged headers."""
        return list(self.descriptions(self.paths()))


def matching_paths(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """Return the paths in a directory with matching names; none if it is missing, is a file, or cannot be read."""
    try:
        return [path for path in folder.iterdir() if names.fullmatch(path.name)]
    except OSError:
        return []


def _is_same_entry(path: Path, identity: disk.Identity | None) -> bool:
    """Return True if the path still holds the same entry, because another process may have replaced it."""
    return identity is not None and disk.identity(path) == identity
