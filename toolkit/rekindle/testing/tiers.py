"""Tiers below the fake device, with tuples of token ids in memory. For `rekindle.testing`."""

from collections import Counter
from collections.abc import Collection
from hashlib import sha256
from typing import Any, NamedTuple

from rekindle.core.messages import (
    Archive,
    Copy,
    Drop,
    Fetch,
    Fetched,
    Gathered,
    Message,
    Offloaded,
    PagesStaged,
    StagePages,
    TakePages,
    Write,
    Written,
)
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.page import NewPage, StoredPage


class FakeState(NamedTuple):
    """The copy of a state on the fake device: the tokens that it has seen."""

    tokens: tuple[int | None, ...]


class FakeHostTier:
    """Stand-in for the host tier, with assertions on the copies to store, fetch or drop.

    Args:
        capacity: the room, in pages.
        disk: the tier for pages on disk only.
        state_pages: the room of a state, in pages.

    Attributes:
        entries: the content of each page or state, by the number of its entry.
    """

    def __init__(self, capacity: int, disk: "FakeDiskTier | None" = None, state_pages: int = 0):
        self.entries: dict[int, Any] = {}
        self._state_pages = state_pages
        self._capacity = capacity
        self._disk = disk or FakeDiskTier()
        self._newest = -1
        self._dropped_ahead: set[int] = set()
        self._unreadable: set[int] = set()

    def handle(self, message: Message) -> list[Message]:
        """Answer Gathered with Offloaded, Fetch with Fetched, StagePages with TakePages and PagesStaged, Archive with
        Write, and Drop with nothing.
        """
        match message:
            case Gathered(offload_id, entries, contents):
                assert list(entries) == sorted({*entries}), "the entries of an Offload are not ascending"
                assert self._newest < entries[0], "an entry of another Offload, or of a later one"
                self._newest = entries[-1]
                new = zip(entries, contents, strict=bool(contents))
                self.entries |= {entry: content for entry, content in new if entry not in self._dropped_ahead}
                self._unreadable |= {entry for entry in entries if not contents and entry not in self._dropped_ahead}
                self._dropped_ahead.difference_update(entries)
                room = sum(self._state_pages if isinstance(each, FakeState) else 1 for each in self.entries.values())
                assert room <= self._capacity, "more is offloaded than there is room for"
                return [Offloaded(offload_id, is_stored=bool(contents))]
            case Fetch(request_id, copies):
                contents_of = {copy: self._read(copy) for copy in copies}
                bad = tuple(copy for copy, content in contents_of.items() if content is None)
                staged = None if bad else tuple(content for content in contents_of.values() if content is not None)
                return [Fetched(request_id, staged, bad)]
            case StagePages(request, first, contents):
                return [TakePages(request, first, contents), PagesStaged(request.id)]
            case Archive(pages, entries, used):
                return [Write(pages, tuple(self.entries[entry] for entry in entries), used)]
            case Drop(entries):
                for entry in entries:
                    self._drop(entry)
                return []
        raise wrong_receiver("host tier", message)

    def lose(self, copies: Collection[Copy]) -> None:
        """Make copies unreadable from now on, on disk too; missing copies are ignored."""
        for copy in copies:
            if copy.entry is not None and self.entries.pop(copy.entry, None) is not None:
                self._unreadable.add(copy.entry)
            if copy.record is not None:
                self._disk.contents.pop(copy.record, None)

    def _read(self, copy: Copy) -> Any:
        if copy.entry is None:
            assert copy.record is not None, "a copy that is nowhere"
            return self._disk.contents.get(copy.record)
        assert copy.entry in self._unreadable or copy.entry in self.entries, "an entry is fetched that is not there"
        return self.entries.get(copy.entry)

    def _drop(self, entry: int) -> None:
        if entry > self._newest:
            assert entry not in self._dropped_ahead, "an entry is dropped twice"
            self._dropped_ahead.add(entry)
        else:
            assert entry in self.entries or entry in self._unreadable, "an entry is dropped that is not there"
            self._unreadable.discard(entry)
            self.entries.pop(entry, None)


class FakeDiskTier:
    """In-memory stand-in for the snapshot store.

    Attributes:
        contents: the content of each present record.
        pages: the page of each record, including removed ones.
        used: the number of reported uses of each record.
    """

    def __init__(self) -> None:
        self.contents: dict[int, Any] = {}
        self.pages: dict[int, NewPage] = {}
        self.used: Counter[int] = Counter()

    def handle(self, message: Message) -> list[Written]:
        """Answer Write with Written."""
        if not isinstance(message, Write):
            raise wrong_receiver("disk tier", message)
        assert {*message.used_records} <= self.pages.keys(), "a record is used that was never written"
        self.used.update(message.used_records)
        by_digest = {page.digest: record for record, page in self.pages.items() if record in self.contents}
        records = []
        for page, content in zip(message.pages, message.contents, strict=True):
            record = by_digest.get(page.digest)
            if record is None:
                record = len(self.pages)
                self.pages[record] = page
                self.contents[record] = content
            records.append(record)
        return [Written(tuple(records), ())]

    def stored(self) -> list[StoredPage]:
        """Return the pages restored by a newly opened store: parents before children, without orphans."""
        pages: list[StoredPage] = []
        present = {record: self.pages[record] for record in self.contents}
        above = {sha256(b"root" + page.namespace.encode()).hexdigest() for page in present.values()}
        while below := {record: page for record, page in present.items() if page.parent in above}:
            pages += [
                StoredPage(record, page.digest, page.parent, page.namespace, page.key) for record, page in below.items()
            ]
            above = {page.digest for page in below.values()}
        return pages
