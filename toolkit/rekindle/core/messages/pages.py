"""Transfer of pages between the device, the host tier and the disk tier."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import join_items
from rekindle.core.page import NewPage
from rekindle.core.words import quantity


@dataclass(frozen=True, slots=True)
class Offload(Message):
    """Copy pages and states to the host tier, between the plans before and after. From the scheduler to the stepper.

    Attributes:
        offload_id: the number of the offload, repeated in the answers.
        pages: the pages.
        entries: the number of each copy, first of pages, then of states, above all numbers of earlier `Offload`
            messages.
        losses: see `Plan`. Pages of a lost device state are not copied.
        slots: the slots with the states.
    """

    offload_id: int
    pages: tuple[int, ...]
    entries: tuple[int, ...]
    losses: int = 0
    slots: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [f"pages [{join_items(self.pages)}]"] if self.pages or not self.slots else []
        parts += [f"the states of slots [{join_items(self.slots)}]"] if self.slots else []
        return f"Offload: {' and '.join(parts)} to the host tier"


@dataclass(frozen=True, slots=True)
class Gathered(Message):
    """The copies for an `Offload`, in the order of its entries. From the stepper to the host tier.

    Attributes:
        arrays: a separate device array for each page and state; empty if they could not be copied.
    """

    offload_id: int
    entries: tuple[int, ...]
    arrays: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Gathered: {_count(len(self.arrays))}"


@dataclass(frozen=True, slots=True)
class Offloaded(Message):
    """The outcome of an `Offload`. From the host tier to the scheduler.

    Attributes:
        is_stored: whether the host tier stored the entries; it stores all or none.
    """

    offload_id: int
    is_stored: bool

    def __str__(self) -> str:
        return "Offloaded: kept" if self.is_stored else "Offloaded: not kept"


@dataclass(frozen=True, slots=True)
class Drop(Message):
    """Drop entries, perhaps before their `Offloaded`. From the scheduler to the host tier."""

    entries: tuple[int, ...]

    def __str__(self) -> str:
        return f"Drop: {_count(len(self.entries))} of the host tier"


class Copy(NamedTuple):
    """The place of a copy of a page or state: an entry of the host tier, or a record on disk."""

    entry: int | None
    record: int | None


@dataclass(frozen=True, slots=True)
class Fetch(OfRequest):
    """Stage pages, and perhaps a state, for a queued request on the device. From the scheduler to the host tier.

    Attributes:
        copies: for each page and then for the state, the entry of the host tier or, without one, the record of the
            disk tier.
    """

    copies: tuple[Copy, ...]

    def __str__(self) -> str:
        return f"Fetch: request {self.request_id}, {_count(len(self.copies))}"


@dataclass(frozen=True, slots=True)
class Fetched(OfRequest):
    """The answer to a `Fetch`. From the host tier to the scheduler.

    Attributes:
        staged: the staged copies for an `Onload`, in the order of the `Fetch`; None unless all could be staged.
        bad: the unreadable copies.
    """

    staged: tuple[Any, ...] | None
    bad: tuple[Copy, ...] = ()

    def __str__(self) -> str:
        staged = "not all of them" if self.staged is None else _count(len(self.staged))
        return f"Fetched: request {self.request_id}, {staged}"


@dataclass(frozen=True, slots=True)
class Archive(Message):
    """Write pages and states of the host tier to disk. From the scheduler to the host tier.

    Attributes:
        pages: the pages to write, parents before children.
        entries: the host-tier entry of each page.
        used_records: records with a prefix used since the last `Archive`.
    """

    pages: tuple[NewPage, ...]
    entries: tuple[int, ...]
    used_records: tuple[int, ...]

    def __str__(self) -> str:
        return f"Archive: {_count(len(self.pages))}"


@dataclass(frozen=True, slots=True)
class Write(Message):
    """An `Archive` with the content of each page. From the host tier to the disk tier.

    Attributes:
        contents: the content of each page; None if the host tier has no such entry.
        Others as in `Archive`.
    """

    pages: tuple[NewPage, ...]
    contents: tuple[Any, ...]
    used_records: tuple[int, ...]

    def __str__(self) -> str:
        return f"Write: {_count(len(self.pages))}"


@dataclass(frozen=True, slots=True)
class Written(Message):
    """The outcome of a `Write`. From the disk tier to the scheduler.

    Attributes:
        records: the record of each page; None if it could not be written.
        pruned: records removed from the disk to make room.
        full: whether pages without a record are too many for the size limit; otherwise writing failed.
    """

    records: tuple[int | None, ...]
    pruned: tuple[int, ...]
    full: bool = False

    def __str__(self) -> str:
        return f"Written: {_count(sum(record is not None for record in self.records))}"


@dataclass(frozen=True, slots=True)
class SaveCache(Message):
    """Write all cached pages to disk, for a caller. From the caller to the scheduler."""

    ticket: int


@dataclass(frozen=True, slots=True)
class CacheSaving(Message):
    """Progress of a `SaveCache`. From the scheduler to the caller.

    Attributes:
        pages: pages written since the call.
        total: `pages`, and the pages still to write.
    """

    ticket: int
    pages: int
    total: int

    def __str__(self) -> str:
        return f"CacheSaving: {self.pages} of {quantity(self.total, 'page')} so far"


@dataclass(frozen=True, slots=True)
class CacheSaved(Message):
    """All cached pages are on disk, or as many as possible. From the scheduler to the caller.

    Attributes:
        pages: pages written since the call.
        complete: whether no page failed.
        crowded_out: pages of these that left the disk again, or had no room there, by its size limit.
    """

    ticket: int
    pages: int
    complete: bool
    crowded_out: int = 0

    def __str__(self) -> str:
        return f"CacheSaved: {quantity(self.pages, 'page')}"


def _count(copies: int) -> str:
    """Format a number of copies, of pages or states."""
    return quantity(copies, "copy", "copies")
