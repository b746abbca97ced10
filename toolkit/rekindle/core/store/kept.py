"""The entries of all models in one store: described, verified, evicted, and dropped where they are damaged."""

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
"""The name of a program or a snapshot: the digest of its key."""

T = TypeVar("T")
Described = TypeVar("Described")


@dataclass(frozen=True, slots=True)
class Entry:
    """One program or snapshot, as its store lists it.

    Attributes:
        digest: the digest of the key.
        parts: the parts of the key, by name.
        bytes: on disk.
        created, used: seconds since the epoch.
    """

    digest: str
    parts: dict[str, str]
    bytes: int
    created: float
    used: float


class Kept(ABC, Generic[Described]):
    """The entries of all models in one directory, for any number of threads and processes at once.

    Methods raise `UnsafeStorage` if the directory or an entry that they read belongs to another user, or is writable by
    others; of an entry, `verify` only says so.

    Args:
        directory: of nothing but these entries; it need not be there.
        contents: what the entries hold, in words.

    Attributes:
        directory: as given, without links.
    """

    names: ClassVar = DIGEST
    """The pattern of all entries' names."""

    def __init__(self, directory: Path, contents: str):
        self.directory = directory.resolve()
        self._contents = contents
        self._unusable: set[disk.Identity] = set()
        self._failed = False

    @abstractmethod
    def describe(self, path: Path) -> Described:
        """Return what the header of an entry says, or raise an error as `entries.header_of` does."""

    @abstractmethod
    def check(self, path: Path) -> None:
        """Read all of an entry. Raise any error if it is not as it was written."""

    def folders(self) -> list[Path]:
        """Return the directories in which entries lie; none if the store is not there."""
        try:
            require_private(self.directory)
        except OSError:
            return []
        return [self.directory]

    def paths_in(self, folder: Path) -> list[Path]:
        """Return the paths of the entries in a directory; ignore all other files."""
        return named(folder, self.names)

    def paths(self) -> list[Path]:
        """Return the paths of all entries, the most recently used first."""
        paths = [path for folder in self.folders() for path in self.paths_in(folder)]
        return sorted(paths, key=disk.last_used, reverse=True)

    def described(self, paths: Iterable[Path]) -> Iterator[Described]:
        """Yield what the headers of entries say; skip entries that are gone or whose header is damaged."""
        for path in paths:
            try:
                yield self.describe(path)
            except (disk.Damaged, OSError):
                continue

    def verify(self) -> dict[Path, str]:
        """Read all entries, and return what is wrong with each that cannot be used."""
        wrong = {}
        for path in self.paths():
            found = disk.identity(path)
            try:
                self.check(path)
            except Exception as error:  # whatever tensorstore may say of it
                if _is_still(path, found):
                    wrong[path] = str(error)
        return wrong

    def evict(self, max_bytes: int, keep: Collection[Path] = ()) -> list[Path]:
        """Remove the least recently used entries until the rest takes at most `max_bytes`; return their paths.

        What is being written, and what killed processes left behind, counts as well.

        Args:
            keep: entries that stay in any case.
        """
        sizes = {path: disk.bytes_of(path) for path in reversed(self.paths())}
        unnamed = sum(disk.size_of(path) for folder in self.folders() for path in disk.temporary_in(folder))
        total, removed = unnamed + sum(sizes.values()), []
        for path, size in sizes.items():
            if total <= max_bytes:
                break
            if path not in keep:
                disk.remove(path)
                removed.append(path)
                total -= size
        return removed

    def prune(self, max_bytes: int) -> None:
        """Remove what killed processes left behind, and evict entries until the rest takes at most `max_bytes`."""
        for folder in self.folders():
            disk.remove_left_behind(folder)
        self.evict(max_bytes)

    def clear(self) -> None:
        """Remove all entries, also those in use: a process that uses one has it in memory."""
        for folder in self.folders():
            for path in self.paths_in(folder):
                disk.remove(path)
            disk.remove_left_behind(folder, written_now=True)

    def read(self, path: Path, read: Callable[[], T]) -> T | None:
        """Return what `read` makes of an entry. If it raises another error, drop the entry, warn, and return None."""
        found = disk.identity(path)
        if found is None or found in self._unusable:
            return None
        try:
            return read()
        except UnsafeStorage:
            raise
        except Exception as error:  # whatever tensorstore, pickle and the device's runtime may say of it
            if _is_still(path, found) and not ending():
                self._drop(path, found, error)
            return None

    def write(self, write: Callable[[], T]) -> T | None:
        """Return what `write` does. If it raises another error, return None, and warn if it is the first."""
        try:
            return write()
        except UnsafeStorage:
            raise
        except Exception as error:  # whatever Orbax may say of a full or broken disk
            self.warn_unsaved(f"{type(error).__name__}: {error}")
            return None

    def warn_unsaved(self, reason: str) -> None:
        """Warn, once, that something cannot be saved; a process that ends has nobody to warn."""
        if self._failed or ending():
            return
        self._failed = True
        warn(
            f"{self._contents} cannot be saved to {self.directory}, and will be made again next time: {reason}",
            stacklevel=4,
        )

    def drop(self, path: Path, error: Exception) -> None:
        """Drop an entry that was read and does not do what it should, and warn."""
        found = disk.identity(path)
        if found is not None:
            self._drop(path, found, error)

    def _drop(self, path: Path, found: disk.Identity, error: Exception) -> None:
        disk.remove(path)
        self._unusable.add(found)  # it is still there if the directory cannot be written to
        warn(f"the {self._contents} in {path} cannot be used ({error}): they are dropped and made anew", stacklevel=4)


def named(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """Return the paths in a directory whose names match; none if it is gone, is a file, or cannot be read."""
    try:
        return [path for path in folder.iterdir() if names.fullmatch(path.name)]
    except OSError:
        return []


def _is_still(path: Path, found: disk.Identity | None) -> bool:
    """Return whether an entry is there, and is the one that was found: another process may have removed it."""
    return found is not None and disk.identity(path) == found
