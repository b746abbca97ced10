"""Index of a snapshot: the segment and position of each stored page."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from rekindle.core.page import StoredPage, digest_below
from rekindle.core.store.segments import Segment, SegmentPage


@dataclass(slots=True)
class _Copies:
    """A page, and its position in each segment with a copy, by segment name. Two processes may store the same page."""

    record: int
    page: SegmentPage
    places: dict[str, int] = field(default_factory=dict)


class SnapshotIndex:
    """Pages of all open segments, each with a record number unique within this process."""

    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}
        self._copies: dict[str, _Copies] = {}
        self._digests: dict[int, str] = {}
        self._numbers = count()

    def add(self, segment: Segment) -> None:
        """Add a segment."""
        self.segments[segment.path.name] = segment
        for position, page in enumerate(segment.pages):
            copies = self._copies.get(page.digest)
            if copies is None:
                copies = self._copies[page.digest] = _Copies(next(self._numbers), page)
                self._digests[copies.record] = page.digest
            copies.places[segment.path.name] = position

    def discard(self, name: str) -> list[int]:
        """Forget a segment, if it is present. Return the records of pages without another copy."""
        segment = self.segments.pop(name, None)
        removed = []
        for digest in {page.digest: None for page in segment.pages} if segment is not None else ():
            copies = self._copies[digest]
            del copies.places[name]
            if not copies.places:
                del self._copies[digest], self._digests[copies.record]
                removed.append(copies.record)
        return removed

    def record_of(self, digest: str) -> int | None:
        """Return the record of a page, or None if it is not stored."""
        copies = self._copies.get(digest)
        return None if copies is None else copies.record

    def find(self, record: int) -> tuple[Segment, int] | None:
        """Return a segment that holds the page, and the page's position in it, or None if the page is not stored."""
        if record not in self._digests:
            return None
        name, position = next(iter(self._copies[self._digests[record]].places.items()))
        return self.segments[name], position

    def pages(self) -> list[StoredPage]:
        """Return all pages with a completely stored prefix, parents before children."""
        children: dict[str, list[_Copies]] = {}
        for copies in self._copies.values():
            children.setdefault(copies.page.parent, []).append(copies)
        roots = {root_digest(copies.page.namespace) for copies in self._copies.values()}
        ordered: list[StoredPage] = []
        stack = [copies for root in sorted(roots) for copies in children.get(root, [])]
        while stack:
            copies = stack.pop()
            page = copies.page
            ordered.append(StoredPage(copies.record, page.digest, page.parent, page.namespace, page.key))
            stack += children.get(page.digest, [])
        return ordered

    def prefixes(self, records: Iterable[int]) -> list[Segment]:
        """Return the segments of some pages and all their stored ancestors, nearest to the root first."""
        visited: set[str] = set()
        ordered: list[str] = []
        for record in records:
            path = []
            digest = self._digests.get(record, "")
            while digest in self._copies and digest not in visited:
                visited.add(digest)
                path.append(digest)
                digest = self._copies[digest].page.parent
            ordered += reversed(path)
        names = dict.fromkeys(name for digest in ordered for name in self._copies[digest].places)
        return [self.segments[name] for name in names]


def root_digest(namespace: str) -> str:
    """Return the parent digest of the first pages in a namespace."""
    return digest_below(b"root", namespace.encode()).hex()
