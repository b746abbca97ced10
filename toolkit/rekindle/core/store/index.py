"""The index of a snapshot: which pages its segments hold, and where."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from rekindle.core.page import StoredPage, digest_below
from rekindle.core.store.segments import Segment, SegmentPage


@dataclass(slots=True)
class _Copies:
    """A page and its place in each segment that holds it, by the segment's name; two processes may store one page."""

    record: int
    page: SegmentPage
    places: dict[str, int] = field(default_factory=dict)


class SnapshotIndex:
    """The pages of all known segments, each with a record number that this process gives to no other page."""

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}
        self._copies: dict[str, _Copies] = {}
        self._digests: dict[int, str] = {}
        self._numbers = count()

    def add(self, segment: Segment) -> None:
        """Add a segment."""
        self.segments[segment.path.name] = segment
        for place, page in enumerate(segment.pages):
            copies = self._copies.get(page.digest)
            if copies is None:
                copies = self._copies[page.digest] = _Copies(next(self._numbers), page)
                self._digests[copies.record] = page.digest
            copies.places[segment.path.name] = place

    def discard(self, name: str) -> list[int]:
        """Forget a segment, if it is known; return the records of the pages that no other segment holds."""
        segment = self.segments.pop(name, None)
        lost = []
        for digest in {page.digest: None for page in segment.pages} if segment is not None else ():
            copies = self._copies[digest]
            del copies.places[name]
            if not copies.places:
                del self._copies[digest], self._digests[copies.record]
                lost.append(copies.record)
        return lost

    def record_of(self, digest: str) -> int | None:
        """Return the record of a page; None if it is not stored."""
        copies = self._copies.get(digest)
        return None if copies is None else copies.record

    def find(self, record: int) -> tuple[Segment, int] | None:
        """Return a segment that holds a page, and the page's place there; None if it is not stored."""
        if record not in self._digests:
            return None
        name, place = next(iter(self._copies[self._digests[record]].places.items()))
        return self.segments[name], place

    def pages(self) -> list[StoredPage]:
        """Return all pages whose whole prefix is stored, parents before children."""
        children: dict[str, list[_Copies]] = {}
        for copies in self._copies.values():
            children.setdefault(copies.page.parent, []).append(copies)
        roots = {root_digest(copies.page.namespace) for copies in self._copies.values()}
        found: list[StoredPage] = []
        waiting = [copies for root in sorted(roots) for copies in children.get(root, [])]
        while waiting:
            copies = waiting.pop()
            page = copies.page
            found.append(StoredPage(copies.record, page.digest, page.parent, page.namespace, page.key))
            waiting += children.get(page.digest, [])
        return found

    def prefixes(self, records: Iterable[int]) -> list[Segment]:
        """Return the segments of these pages and of all stored pages above them, those nearest to a root first."""
        seen: set[str] = set()
        ordered: list[str] = []
        for record in records:
            path = []
            digest = self._digests.get(record, "")
            while digest in self._copies and digest not in seen:
                seen.add(digest)
                path.append(digest)
                digest = self._copies[digest].page.parent
            ordered += reversed(path)
        names = dict.fromkeys(name for digest in ordered for name in self._copies[digest].places)
        return [self.segments[name] for name in names]


def root_digest(namespace: str) -> str:
    """Return the digest of the parent of a namespace's first pages."""
    return digest_below(b"root", namespace.encode()).hex()
