"""The snapshots of all models on disk: for each key one directory of segments, all of them under one bound."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from rekindle.core.store import entries as disk
from rekindle.core.store.kept import DIGEST, Entry, Kept, named
from rekindle.core.store.segments import Segment, open_segment, read_pages

_TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class SnapshotEntry(Entry):
    """One snapshot.

    Attributes:
        model: the name that a person knows the model by.
        pages, tokens: counts over all segments.
        Others as in `Entry`.
    """

    model: str
    pages: int
    tokens: int


class KeptSnapshots(Kept[Segment]):
    """The segments of all snapshots."""

    names: ClassVar = re.compile("[0-9a-f]{32}")

    def __init__(self, directory: Path):
        super().__init__(directory, "pages")

    def folders(self) -> list[Path]:
        """See `Kept`; links are ignored."""
        found = [path for directory in super().folders() for path in named(directory, DIGEST)]
        return [path for path in found if path.is_dir() and not path.is_symlink()]

    def describe(self, path: Path) -> Segment:
        """See `Kept`."""
        return open_segment(path)

    def check(self, path: Path) -> None:
        """See `Kept`."""
        segment = open_segment(path)
        read_pages(segment, range(len(segment.pages)))

    def entries(self) -> list[SnapshotEntry]:
        """Return all snapshots, the most recently used first; segments whose headers are damaged do not count."""
        snapshots: dict[str, list[Segment]] = {}
        for segment in self.described(self.paths()):
            snapshots.setdefault(segment.path.parent.name, []).append(segment)
        return [_entry(digest, segments) for digest, segments in snapshots.items()]

    def latest(self) -> Iterator[Segment]:
        """Yield the most recently used segment of each snapshot, the most recently used snapshot first."""
        known: set[Path] = set()
        for path in self.paths():
            if path.parent not in known:
                for segment in self.described([path]):
                    known.add(path.parent)
                    yield segment

    def clear(self) -> None:
        """See `Kept`. A directory in which something else lies, or to which another process writes, stays."""
        super().clear()
        for folder in self.folders():
            try:
                folder.rmdir()
            except OSError:
                continue


def _entry(digest: str, segments: Sequence[Segment]) -> SnapshotEntry:
    """Return one snapshot, of its segments with the most recently used first."""
    pages = [page for segment in segments for page in segment.pages]
    latest = segments[0]
    return SnapshotEntry(
        digest,
        latest.origin.parts,
        bytes=sum(segment.bytes for segment in segments),
        created=min(segment.created for segment in segments),
        used=disk.last_used(latest.path) / 1e9,
        model=latest.origin.model,
        pages=len(pages),
        tokens=sum(len(page.key) // _TOKEN_BYTES for page in pages),
    )
