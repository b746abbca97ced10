"""Snapshot store: prefix-cache pages on disk, for one model and one key."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rekindle.core.page import NewPage, StoredPage
from rekindle.core.store import entries as disk
from rekindle.core.store.catalog import DEFAULT_BYTES
from rekindle.core.store.directory import make_private, require_private
from rekindle.core.store.entries import Array
from rekindle.core.store.index import SnapshotIndex
from rekindle.core.store.segments import (
    PAGES_PER_SEGMENT,
    Segment,
    SegmentOrigin,
    open_segment,
    read_pages,
    write_segment,
)
from rekindle.core.store.snapshot_key import SnapshotKey
from rekindle.core.store.snapshots import SnapshotCatalog
from rekindle.core.store.validity import Difference

SEGMENT_BYTES: Final = 8 << 10
"""Room of a segment on disk beside the bytes of its pages."""


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """Result of `SnapshotStore.write`.

    Attributes:
        records: the record of each page, or None for a page that could not be stored.
        pruned: records invalidated since the last call. Their pages left the disk because of the size limit, another
            process, or damage.
        full: whether pages without a record exceed the size limit together with their ancestors; otherwise writing
            failed.
    """

    records: tuple[int | None, ...]
    pruned: tuple[int, ...]
    full: bool


class SnapshotStore:
    """Pages of one model under one key. Any number of threads and processes may use it concurrently.

    Pages of one segment are evicted together. A damaged or missing directory or segment causes a warning and the loss
    of its pages: a page is returned bit for bit as stored, or not at all. Methods raise `UnsafeStorage` if the
    directory or a segment belongs to another user, or is writable by others. Do not call methods on an event loop's
    thread.

    Args:
        directory: a directory for snapshots alone; created with mode 0700 when the first page is written.
        key: the key of the pages.
        model: display name of the model.
        capacity_bytes: limit on the snapshots of all keys together; the least recently used segments are evicted.
    """

    def __init__(self, directory: Path, key: SnapshotKey, model: str, capacity_bytes: int = DEFAULT_BYTES):
        self._catalog = SnapshotCatalog(directory)
        self._directory = self._catalog.directory / key.digest
        self._key = key
        self._origin = SegmentOrigin(model, key.parts())
        self._capacity = capacity_bytes
        self._index = SnapshotIndex()
        self._pruned: list[int] = []
        self._lock = threading.Lock()  # guards the index and `_pruned`; never held during disk access
        self._update_lock = threading.Lock()  # held while segments are added to the index

    def index(self) -> list[StoredPage]:
        """Return all pages with a completely stored prefix, from any process, parents before children."""
        with self._update_lock:
            self._refresh()
        with self._lock:
            return self._index.pages()

    def write(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> WriteOutcome:
        """Store the pages that are not stored yet, one segment at a time. Only the first failure causes a warning.

        Args:
            pages: the pages; each comes after its parent, unless the parent is already stored.
            arrays: the content of each page, which must not change during the call.
        """
        with self._update_lock:
            self._refresh()
            missing = self._unstored(pages, arrays)
            starts = range(0, len(missing), PAGES_PER_SEGMENT)
            works = all(self._store_fitting(missing[start : start + PAGES_PER_SEGMENT]) for start in starts)
        with self._lock:
            pruned, self._pruned = self._pruned, []
            return WriteOutcome(tuple(self._index.record_of(page.digest) for page in pages), tuple(pruned), works)

    def read(self, records: Sequence[int]) -> list[Array | None]:
        """Return the content of pages, or None for missing pages. Damaged pages are dropped with a warning."""
        arrays: list[Array | None] = [None] * len(records)
        if self._exists():
            for segment, targets in self._locate(records):
                content = self._read(segment, [place for _, place in targets])
                for (position, _), array in zip(targets, content, strict=True):
                    arrays[position] = array
        return arrays

    def use(self, records: Sequence[int]) -> None:
        """Mark pages and their ancestors as used now. Ancestors are marked last, so they are evicted last."""
        with self._lock:
            segments = self._index.prefixes(records)
        for segment in reversed(segments):
            disk.mark_used(segment.path)

    def explain(self) -> dict[str, Difference] | None:
        """Compare this key with the model's most recently used snapshot, to explain a missing snapshot.

        Returns:
            The differing parts, each with its value here and there, or None if this key has a snapshot or the model has
            none at all.
        """
        if self._exists() and self._catalog.paths_in(self._directory):
            return None
        others = (segment.origin for segment in self._catalog.latest())
        return next((self._key.explain(origin.parts) for origin in others if origin.model == self._origin.model), None)

    def _refresh(self) -> None:
        """Add the segments written by other processes, and forget removed segments."""
        paths = {path.name: path for path in self._catalog.paths_in(self._directory)} if self._exists() else {}
        with self._lock:
            indexed = set(self._index.segments)
        for name in indexed - paths.keys():
            self._forget(name)
        for name in paths.keys() - indexed:
            segment = self._catalog.read(paths[name], partial(self._open, paths[name]))
            if segment is not None:
                with self._lock:
                    self._index.add(segment)

    def _unstored(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> list[tuple[NewPage, Array]]:
        """Return the pages that are not stored yet, without duplicates, with their arrays."""
        with self._lock:
            is_missing = [self._index.record_of(page.digest) is None for page in pages]
        contents = zip(pages, arrays, is_missing, strict=True)
        return list({page.digest: (page, array) for page, array, missing in contents if missing}.values())

    def _locate(self, records: Sequence[int]) -> list[tuple[Segment, list[tuple[int, int]]]]:
        """Return the segments that hold pages, with each page's position in `records` and index in the segment."""
        targets: dict[str, tuple[Segment, list[tuple[int, int]]]] = {}
        with self._lock:
            for position, record in enumerate(records):
                location = self._index.find(record)
                if location is not None:
                    segment, index = location
                    targets.setdefault(segment.path.name, (segment, []))[1].append((position, index))
        return list(targets.values())

    def _open(self, path: Path) -> Segment:
        segment = open_segment(path)
        if segment.origin.parts != self._origin.parts:
            raise disk.Damaged("its pages have another key")
        return segment

    def _read(self, segment: Segment, places: Sequence[int]) -> Sequence[Array | None]:
        arrays = self._catalog.read(segment.path, partial(read_pages, segment, places))
        if arrays is None:
            self._forget(segment.path.name)
        return arrays or [None] * len(places)

    def _store_fitting(self, contents: Sequence[tuple[NewPage, Array]]) -> bool:
        """Store pages in one segment, or in one for each branch if the limit has no room for all ancestors together.

        Pages beyond the limit are left out: a prefix that exceeds it alone is stored up to some page.

        Returns:
            False if writing failed.
        """
        while contents:
            fitting = self._fitting(contents)
            if not fitting:
                self._catalog.warn_unsaved(
                    f"disk_cache_bytes, {self._capacity:,} bytes, has no room for some pages together with all those "
                    "before them, of which the first are saved. Raise disk_cache_bytes"
                )
                return True
            if not self._store(fitting):
                return False
            stored = {page.digest for page, _ in fitting}
            contents = [each for each in contents if each[0].digest not in stored]
        return True

    def _fitting(self, contents: Sequence[tuple[NewPage, Array]]) -> list[tuple[NewPage, Array]]:
        """Return the first pages that fit within the limit together with all their ancestors, parents before children.

        A page without room leaves out those below it, and other branches follow.
        """
        room = self._capacity - SEGMENT_BYTES
        fitting: list[tuple[NewPage, Array]] = []
        digests: set[str] = set()
        left_out: set[str] = set()
        ancestors: set[str] = set()
        for page, array in contents:
            above = [] if page.parent in digests or page.parent in left_out else self._ancestors([page])
            new = [segment for segment in above if segment.path.name not in ancestors]
            size = array.nbytes + sum(segment.bytes for segment in new)
            if page.parent in left_out or size > room:
                left_out.add(page.digest)
                continue
            room -= size
            ancestors.update(segment.path.name for segment in new)
            digests.add(page.digest)
            fitting.append((page, array))
        return fitting

    def _store(self, contents: Sequence[tuple[NewPage, Array]]) -> bool:
        """Store one more segment, and evict others; return False if writing failed."""
        pages, arrays = [page for page, _ in contents], [array for _, array in contents]
        ancestors = self._ancestors(pages)
        segment = self._catalog.write(partial(self._write, pages, arrays))
        if segment is None:
            return False
        with self._lock:
            self._index.add(segment)
        for ancestor in reversed(ancestors):  # so that they are not evicted for the new segment
            disk.mark_used(ancestor.path)
        for path in self._catalog.evict(self._capacity):
            self._forget(path.name)
        return True

    def _write(self, pages: Sequence[NewPage], arrays: Sequence[Array]) -> Segment:
        make_private(self._catalog.directory)
        make_private(self._directory)
        disk.remove_leftovers(self._directory)
        return write_segment(self._directory, self._origin, pages, arrays)

    def _ancestors(self, pages: Sequence[NewPage]) -> list[Segment]:
        """Return the segments of all ancestors of pages, nearest to the root first."""
        with self._lock:
            parents = [self._index.record_of(page.parent) for page in pages]
            return self._index.prefixes(record for record in parents if record is not None)

    def _exists(self) -> bool:
        """Return True if the snapshot's directory exists. Raise `UnsafeStorage` if it is not private to this user."""
        try:
            require_private(self._catalog.directory)
            require_private(self._directory)
        except OSError:
            return False
        return True

    def _forget(self, name: str) -> None:
        with self._lock:
            self._pruned += self._index.discard(name)
