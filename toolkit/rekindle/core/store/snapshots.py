"""Snapshots of all models on disk: one directory of segments for each key, with one size limit for all of them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rekindle.core.page import STATE_KEY
from rekindle.core.store import entries as disk
from rekindle.core.store.catalog import DIGEST, Catalog, Entry, matching_paths
from rekindle.core.store.segments import Segment, open_segment, read_pages


@dataclass(frozen=True, slots=True)
class SnapshotEntry(Entry):
    """One snapshot.

    Attributes:
        pages, states, tokens: counts over all segments.
        digest, parts, bytes, created, used, model: see `Entry`.
    """

    pages: int
    tokens: int
    states: int = 0


class SnapshotCatalog(Catalog[Segment]):
    """Catalog of the segments of all snapshots."""

    names: ClassVar = re.compile("[0-9a-f]{32}")

    def __init__(self, directory: Path):
        super().__init__(directory, "pages")

    def folders(self) -> list[Path]:
        """See `Catalog.folders`; links are ignored."""
        folders = [path for directory in super().folders() for path in matching_paths(directory, DIGEST)]
        return [path for path in folders if path.is_dir() and not path.is_symlink()]

    def describe(self, path: Path) -> Segment:
        """See `Catalog.describe`."""
        return open_segment(path)

    def check(self, path: Path) -> None:
        """See `Catalog.check`."""
        segment = open_segment(path)
        read_pages(segment, range(len(segment.pages)))

    def entries(self) -> list[SnapshotEntry]:
        """Return all snapshots, most recently used first. Segments with damaged headers do not count."""
        snapshots: dict[str, list[Segment]] = {}
        for segment in self.descriptions(self.paths()):
            snapshots.setdefault(segment.path.parent.name, []).append(segment)
        return [_entry(digest, segments) for digest, segments in snapshots.items()]

    def latest(self) -> Iterator[Segment]:
        """Yield the most recently used segment of each snapshot, in order of last use."""
        visited: set[Path] = set()
        for path in self.paths():
            if path.parent not in visited:
                for segment in self.descriptions([path]):
                    visited.add(path.parent)
                    yield segment

    def clear(self) -> None:
        """See `Catalog.clear`. A directory with other files, or with an active writer, stays."""
        super().clear()
        for folder in self.folders():
            try:
                folder.rmdir()
            except OSError:
                continue


def _entry(digest: str, segments: Sequence[Segment]) -> SnapshotEntry:
    """Return the description of one snapshot from its segments, given in order of last use."""
    pages = [page for segment in segments for page in segment.pages]
    latest = segments[0]
    count = sum(page.key != STATE_KEY for page in pages)
    return SnapshotEntry(
        digest,
        latest.origin.parts,
        bytes=sum(segment.bytes for segment in segments),
        created=min(segment.created for segment in segments),
        used=disk.last_used(latest.path) / 1e9,
        model=latest.origin.model,
        pages=count,
        tokens=count * int(latest.origin.parts["page_size"]),
        states=sum(page.key == STATE_KEY for page in pages),
    )
