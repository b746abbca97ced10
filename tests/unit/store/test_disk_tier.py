"""The disk tier writes pages in order and reports the outcome of each."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from rekindle.core.engine.actors.disk_tier import DiskTier
from rekindle.core.engine.actors.host_tier import HostTier
from rekindle.core.messages import Archive, Cancel, Copy, Drop, Fetch, Fetched, Gathered, Write, Written
from rekindle.core.page import NewPage
from rekindle.core.store.snapshot_store import SnapshotStore, WriteOutcome

pytestmark = pytest.mark.anyio
PAGES = tuple(NewPage(str(number), "root", "", bytes(4)) for number in range(3))


class FakeStore:
    """A store with room for every page except pages of zeros."""

    def __init__(self) -> None:
        self.contents: list[Any] = []
        self.used: list[int] = []

    def write(self, pages: Sequence[NewPage], arrays: Sequence[np.ndarray[Any, np.dtype[Any]]]) -> WriteOutcome:
        assert len(pages) == len(arrays)
        records: list[int | None] = []
        for array in arrays:
            records.append(len(self.contents) if array.any() else None)
            self.contents.append(array)
        return WriteOutcome(tuple(records), (7,), full=False)

    def use(self, records: Sequence[int], /) -> None:
        self.used += records

    def read(self, records: Sequence[int]) -> list[Any | None]:
        return [self.contents[record] if record < len(self.contents) else None for record in records]


class SameCopies:
    """Copies between memories without any copying."""

    def keep(self, pages: Sequence[Any]) -> list[Any]:
        return list(pages)

    def stage(self, entries: Sequence[Any]) -> list[Any]:
        return list(entries)


async def test_pages_are_written_and_records_come_back_in_their_places() -> None:
    store = FakeStore()
    tier = DiskTier(cast(SnapshotStore, store))
    reports = await tier.handle(Write(PAGES, (np.ones(2), None, np.zeros(2)), (4, 5)))
    assert reports == [Written((0, None, None), (7,))]
    assert store.used == [4, 5]
    assert await tier.handle(Write(PAGES[:1], (np.ones(1),), ())) == [Written((2,), (7,))]


async def test_without_a_store_nothing_is_written() -> None:
    assert await DiskTier(None).handle(Write(PAGES, (1, 2, 3), ())) == [Written((None, None, None), ())]


async def test_another_actors_message_is_refused() -> None:
    with pytest.raises(TypeError, match="the disk tier takes no Cancel, got Cancel"):
        await DiskTier(None).handle(Cancel(1))


async def test_the_host_tier_hands_on_what_it_has_and_reads_what_it_has_not() -> None:
    store = FakeStore()
    host = HostTier(1000, SameCopies(), cast(SnapshotStore, store))
    await host.handle(Gathered(1, (0, 1, 2), (np.ones(1), np.ones(2), np.ones(3))))
    await host.handle(Drop((1,)))
    (write,) = await host.handle(Archive(PAGES, (0, 1, 2), (9,)))
    assert isinstance(write, Write)
    assert (write.pages, write.used_records, write.contents[1]) == (PAGES, (9,), None)
    await DiskTier(cast(SnapshotStore, store)).handle(write)

    (fetched,) = await host.handle(Fetch(5, (Copy(2, None), Copy(None, 1), Copy(None, 0))))
    assert isinstance(fetched, Fetched)
    assert fetched.staged is not None
    assert [len(content) for content in fetched.staged] == [3, 3, 1]
    bad = (Copy(1, None), Copy(None, 8))
    assert await host.handle(Fetch(5, (Copy(2, None), *bad))) == [Fetched(5, None, bad)]
