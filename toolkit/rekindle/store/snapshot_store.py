"""The snapshot store: pages of the prefix cache on disk, for one model as one process computes it."""

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.concurrency.threads import ending
from rekindle.errors import UnsafeStorage
from rekindle.page import NewPage, StoredPage
from rekindle.store import entries as disk
from rekindle.store import snapshots
from rekindle.store.index import SnapshotIndex
from rekindle.store.segments import (
    PAGES_PER_SEGMENT,
    Array,
    Origin,
    Segment,
    open_segment,
    read_pages,
    segment_paths,
    write_segment,
)
from rekindle.store.snapshot_key import SnapshotKey

DEFAULT_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class Written:
    """What `SnapshotStore.write` did.

    Attributes:
        records: of each page; None for one that could not be stored.
        pruned: the records that are good no more: since the last call their pages left the disk, because of the
            bound, another process, or damage.
        bytes: that were written to disk.
    """

    records: tuple[int | None, ...]
    pruned: tuple[int, ...]
    bytes: int


class SnapshotStore:
    """Pages under one key, for any number of threads and processes at once.

    Pages that lie together in a segment leave together. What may be wrong with the directory or its segments costs a
    warning and the pages, never more: a page comes back bit by bit as it was, or not at all. None of the methods is
    for an event loop's thread.

    Args:
        directory: of nothing but snapshots; made, with mode 0700, when the first page is written.
        key: of the pages.
        model: the name that a person knows the model by.
        capacity_bytes: bound of the snapshots of all keys together; the least recently used segments leave first.
    """

    def __init__(self, directory: Path, key: SnapshotKey, model: str, capacity_bytes: int = DEFAULT_BYTES):
        self._directory = directory.resolve()
        self._own = self._directory / key.digest
        self._origin = Origin(model, key.parts())
        self._capacity = capacity_bytes
        self._index = SnapshotIndex()
        self._pruned: list[int] = []
        self._unusable: set[str] = set()
        self._failed = False
        self._lock = threading.Lock()  # of the index and `_pruned`; never held while the disk is used
        self._growing = threading.Lock()  # held by whoever adds segments to the index

    @property
    def pages(self) -> int:
        """How many pages are known to be stored under the key."""
        with self._lock:
            return len(self._index)

    @property
    def bytes(self) -> int:
        """What they take on disk."""
        with self._lock:
            segments = list(self._index.segments.values())
        return sum(segment.bytes for segment in segments)

    def index(self) -> list[StoredPage]:
        """All pages whose whole prefix is stored, by whatever process, parents before children.

        Raises:
            UnsafeStorage: the directory or a segment belongs to another user, or is writable by others.
        """
        with self._growing:
            self._refresh()
        with self._lock:
            return self._index.pages()

    def write(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> Written:
        """Store the pages that are not stored yet, a segment at a time. The first failure is told by a warning.

        Args:
            pages: parents before children, or with parents that are stored already.
            arrays: the content of each, which must not change meanwhile.

        Raises:
            UnsafeStorage: the directory or a segment belongs to another user, or is writable by others.
        """
        written = 0
        with self._growing:
            self._refresh()
            new = self._new(pages, arrays)
            for start in range(0, len(new), PAGES_PER_SEGMENT):
                segment = self._store(new[start : start + PAGES_PER_SEGMENT])
                if segment is None:
                    break
                written += segment.bytes
        with self._lock:
            pruned, self._pruned = self._pruned, []
            return Written(tuple(self._index.record_of(page.digest) for page in pages), tuple(pruned), written)

    def read(self, records: Sequence[int]) -> list[Array | None]:
        """The content of pages; None for those that are gone, or were damaged and are dropped with a warning.

        Raises:
            UnsafeStorage: the directory or a segment belongs to another user, or is writable by others.
        """
        arrays: list[Array | None] = [None] * len(records)
        if self._is_there():
            for segment, wanted in self._found(records):
                read = self._read(segment, [place for _, place in wanted])
                for (position, _), array in zip(wanted, read, strict=True):
                    arrays[position] = array
        return arrays

    def use(self, records: Sequence[int]) -> None:
        """Pages and all above them were used now: what is above is marked later, so that it leaves later."""
        with self._lock:
            segments = self._index.prefixes(records)
        for segment in reversed(segments):
            disk.mark_used(segment.path)

    def _refresh(self) -> None:
        """See what other processes added and removed."""
        paths = {path.name: path for path in segment_paths(self._own)} if self._is_there() else {}
        with self._lock:
            known = set(self._index.segments)
        for name in known - paths.keys():
            self._forget(name)
        for name in paths.keys() - known - self._unusable:
            segment = self._open(paths[name])
            if segment is not None:
                with self._lock:
                    self._index.add(segment)

    def _new(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> list[tuple[NewPage, Array]]:
        """Those that are not stored yet, each once."""
        with self._lock:
            unknown = [self._index.record_of(page.digest) is None for page in pages]
        contents = zip(pages, arrays, unknown, strict=True)
        return list({page.digest: (page, array) for page, array, new in contents if new}.values())

    def _found(self, records: Sequence[int]) -> list[tuple[Segment, list[tuple[int, int]]]]:
        """Segments that hold pages: of each page its position in `records`, and its place in the segment."""
        wanted: dict[str, tuple[Segment, list[tuple[int, int]]]] = {}
        with self._lock:
            for position, record in enumerate(records):
                found = self._index.find(record)
                if found is not None:
                    segment, place = found
                    wanted.setdefault(segment.path.name, (segment, []))[1].append((position, place))
        return list(wanted.values())

    def _open(self, path: Path) -> Segment | None:
        found = disk.identity(path)
        try:
            segment = open_segment(path)
            if segment.origin.parts != self._origin.parts:
                raise disk.Damaged("its pages are of another key")
        except UnsafeStorage:
            raise
        except Exception as error:  # whatever the system may say of it
            self._drop(path, found, error)
            return None
        return segment

    def _read(self, segment: Segment, places: Sequence[int]) -> Sequence[Array | None]:
        found = disk.identity(segment.path)
        try:
            return read_pages(segment, places)
        except UnsafeStorage:
            raise
        except Exception as error:  # whatever Orbax and the system may say of it
            self._drop(segment.path, found, error)
            self._forget(segment.path.name)
            return [None] * len(places)

    def _store(self, contents: Sequence[tuple[NewPage, Array]]) -> Segment | None:
        """One more segment, where the bound leaves room for it beside all that is above its pages."""
        pages, arrays = [page for page, _ in contents], [array for _, array in contents]
        above = self._above(pages)
        room = self._capacity - sum(segment.bytes for segment in above)
        if sum(array.nbytes for array in arrays) > room:
            self._warn_of_failure(f"{self._capacity} bytes are too few for them and what is above them")
            return None
        segment = self._write(pages, arrays)
        if segment is None:
            return None
        with self._lock:
            self._index.add(segment)
        for higher in reversed(above):  # or they would leave for it
            disk.mark_used(higher.path)
        for path in snapshots.evict(self._directory, self._capacity):
            self._forget(path.name)
        return segment

    def _write(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> Segment | None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own.mkdir(mode=0o700, exist_ok=True)
            disk.require_private(self._directory)
            disk.require_private(self._own)
            disk.remove_left_behind(self._own)
            return write_segment(self._own, self._origin, pages, arrays)
        except UnsafeStorage:
            raise
        except Exception as error:  # whatever Orbax may say of a full or broken disk
            self._warn_of_failure(f"{type(error).__name__}: {error}")
            return None

    def _above(self, pages: Sequence[NewPage]) -> list[Segment]:
        """The segments of all that is above pages, those nearest to a root first."""
        with self._lock:
            parents = [self._index.record_of(page.parent) for page in pages]
            return self._index.prefixes(record for record in parents if record is not None)

    def _is_there(self) -> bool:
        """Whether there is a directory, which is then this user's alone."""
        try:
            disk.require_private(self._directory)
            disk.require_private(self._own)
        except (disk.Damaged, OSError):
            return False
        return True

    def _forget(self, name: str) -> None:
        with self._lock:
            self._pruned += self._index.discard(name)

    def _drop(self, path: Path, found: tuple[int, int] | None, error: Exception) -> None:
        """Remove what turned out to be damaged, unless another process removed it under our hands."""
        if found is None or disk.identity(path) != found or ending():
            return
        disk.remove(path)
        self._unusable.add(path.name)  # it may lie in a directory that cannot be written to
        warnings.warn(
            f"the stored pages {path} cannot be used ({error}): they are dropped and computed anew",
            RuntimeWarning,
            stacklevel=4,
        )

    def _warn_of_failure(self, reason: str) -> None:
        if self._failed or ending():  # who ends has nobody to tell
            return
        self._failed = True
        warnings.warn(
            f"pages cannot be saved to {self._own}, and will be computed again next time: {reason}",
            RuntimeWarning,
            stacklevel=5,
        )
