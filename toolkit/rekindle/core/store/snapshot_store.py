"""The snapshot store: pages of the prefix cache on disk, for one model as one process computes it."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rekindle.core.page import NewPage, StoredPage
from rekindle.core.store import entries as disk
from rekindle.core.store.directory import make_private, require_private
from rekindle.core.store.entries import Array
from rekindle.core.store.index import SnapshotIndex
from rekindle.core.store.kept import DEFAULT_BYTES
from rekindle.core.store.segments import (
    PAGES_PER_SEGMENT,
    Segment,
    SegmentOrigin,
    open_segment,
    read_pages,
    write_segment,
)
from rekindle.core.store.snapshot_key import SnapshotKey
from rekindle.core.store.snapshots import KeptSnapshots
from rekindle.core.store.validity import Difference


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """The outcome of `SnapshotStore.write`.

    Attributes:
        records: the record of each page; None for one that could not be stored.
        pruned: records that are no longer valid. Since the last call their pages left the disk, because of the bound,
            another process, or damage.
    """

    records: tuple[int | None, ...]
    pruned: tuple[int, ...]


class SnapshotStore:
    """The pages of one model, under one key, for any number of threads and processes at once.

    Pages that lie together in a segment leave together. Whatever is wrong with the directory or its segments costs a
    warning and the pages, never more: a page comes back bit by bit as it was, or not at all. Only if the directory or a
    segment belongs to another user, or is writable by others, methods raise `UnsafeStorage`. Call none of them on an
    event loop's thread.

    Args:
        directory: of nothing but snapshots; made, with mode 0700, when the first page is written.
        key: the key of the pages.
        model: the name that a person knows the model by.
        capacity_bytes: bound of the snapshots of all keys together; the least recently used segments leave first.
    """

    def __init__(self, directory: Path, key: SnapshotKey, model: str, capacity_bytes: int = DEFAULT_BYTES):
        self._kept = KeptSnapshots(directory)
        self._own = self._kept.directory / key.digest
        self._key = key
        self._origin = SegmentOrigin(model, key.parts())
        self._capacity = capacity_bytes
        self._index = SnapshotIndex()
        self._pruned: list[int] = []
        self._lock = threading.Lock()  # of the index and `_pruned`; never held while the disk is used
        self._growing = threading.Lock()  # held by whoever adds segments to the index

    def index(self) -> list[StoredPage]:
        """Return all pages whose whole prefix is stored, by whatever process, parents before children."""
        with self._growing:
            self._refresh()
        with self._lock:
            return self._index.pages()

    def write(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> WriteOutcome:
        """Store the pages that are not stored yet, a segment at a time. Warn of the first failure.

        Args:
            pages: the pages; each comes after its parent, unless that is stored already.
            arrays: the content of each page, which must not change meanwhile.
        """
        with self._growing:
            self._refresh()
            new = self._new(pages, arrays)
            for start in range(0, len(new), PAGES_PER_SEGMENT):
                if not self._store(new[start : start + PAGES_PER_SEGMENT]):
                    break
        with self._lock:
            pruned, self._pruned = self._pruned, []
            return WriteOutcome(tuple(self._index.record_of(page.digest) for page in pages), tuple(pruned))

    def read(self, records: Sequence[int]) -> list[Array | None]:
        """Return the content of pages; None for those that are gone, or are damaged and dropped with a warning."""
        arrays: list[Array | None] = [None] * len(records)
        if self._is_there():
            for segment, wanted in self._found(records):
                read = self._read(segment, [place for _, place in wanted])
                for (position, _), array in zip(wanted, read, strict=True):
                    arrays[position] = array
        return arrays

    def use(self, records: Sequence[int]) -> None:
        """Note that pages and all above them are used now. Those above are marked later, so that they leave later."""
        with self._lock:
            segments = self._index.prefixes(records)
        for segment in reversed(segments):
            disk.mark_used(segment.path)

    def explain(self) -> dict[str, Difference] | None:
        """Explain why the model has no snapshot, by its most recently used one under another key.

        Returns:
            The parts that differ, each with its value here and there; None if this key has a snapshot, or the model
            has none at all.
        """
        if self._is_there() and self._kept.paths_in(self._own):
            return None
        others = (segment.origin for segment in self._kept.latest())
        return next((self._key.explain(origin.parts) for origin in others if origin.model == self._origin.model), None)

    def _refresh(self) -> None:
        """Take in the segments that other processes added, and forget those that they removed."""
        paths = {path.name: path for path in self._kept.paths_in(self._own)} if self._is_there() else {}
        with self._lock:
            known = set(self._index.segments)
        for name in known - paths.keys():
            self._forget(name)
        for name in paths.keys() - known:
            segment = self._kept.read(paths[name], partial(self._opened, paths[name]))
            if segment is not None:
                with self._lock:
                    self._index.add(segment)

    def _new(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> list[tuple[NewPage, Array]]:
        """Return the pages that are not stored yet, each once, with their arrays."""
        with self._lock:
            unknown = [self._index.record_of(page.digest) is None for page in pages]
        contents = zip(pages, arrays, unknown, strict=True)
        return list({page.digest: (page, array) for page, array, new in contents if new}.values())

    def _found(self, records: Sequence[int]) -> list[tuple[Segment, list[tuple[int, int]]]]:
        """Return segments that hold pages, and of each page its position in `records` and its place in the segment."""
        wanted: dict[str, tuple[Segment, list[tuple[int, int]]]] = {}
        with self._lock:
            for position, record in enumerate(records):
                found = self._index.find(record)
                if found is not None:
                    segment, place = found
                    wanted.setdefault(segment.path.name, (segment, []))[1].append((position, place))
        return list(wanted.values())

    def _opened(self, path: Path) -> Segment:
        segment = open_segment(path)
        if segment.origin.parts != self._origin.parts:
            raise disk.Damaged("its pages are of another key")
        return segment

    def _read(self, segment: Segment, places: Sequence[int]) -> Sequence[Array | None]:
        arrays = self._kept.read(segment.path, partial(read_pages, segment, places))
        if arrays is None:
            self._forget(segment.path.name)
        return arrays or [None] * len(places)

    def _store(self, contents: Sequence[tuple[NewPage, Array]]) -> bool:
        """Store one more segment, if the bound leaves room for it beside all that is above its pages."""
        pages, arrays = [page for page, _ in contents], [array for _, array in contents]
        above = self._above(pages)
        room = self._capacity - sum(segment.bytes for segment in above)
        if sum(array.nbytes for array in arrays) > room:
            self._kept.warn_unsaved(f"{self._capacity} bytes are too few for them and what is above them")
            return False
        segment = self._kept.write(partial(self._write, pages, arrays))
        if segment is None:
            return False
        with self._lock:
            self._index.add(segment)
        for higher in reversed(above):  # or they would leave for it
            disk.mark_used(higher.path)
        for path in self._kept.evict(self._capacity):
            self._forget(path.name)
        return True

    def _write(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> Segment:
        make_private(self._kept.directory)
        make_private(self._own)
        disk.remove_left_behind(self._own)
        return write_segment(self._own, self._origin, pages, arrays)

    def _above(self, pages: Sequence[NewPage]) -> list[Segment]:
        """Return the segments of all that is above pages, those nearest to a root first."""
        with self._lock:
            parents = [self._index.record_of(page.parent) for page in pages]
            return self._index.prefixes(record for record in parents if record is not None)

    def _is_there(self) -> bool:
        """Return whether there is a snapshot's directory, which is then this user's alone."""
        try:
            require_private(self._kept.directory)
            require_private(self._own)
        except OSError:
            return False
        return True

    def _forget(self, name: str) -> None:
        with self._lock:
            self._pruned += self._index.discard(name)
