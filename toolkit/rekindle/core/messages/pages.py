"""Transfer of pages between the device, the host tier and the disk tier."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from rekindle.core.markup import quantity
from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import join_items
from rekindle.core.page import NewPage


@dataclass(frozen=True, slots=True)
class Offload(Message):
    """Copy pages to the host tier, between the plans sent before and after. From the scheduler to the stepper.

    Attributes:
        offload_id: the number of the offload, repeated in the answers.
        pages: the pages.
        entries: the number of each copy, above all numbers of earlier `Offload` messages.
        losses: see `Plan`. Pages of a lost device state are not copied.
    """

    offload_id: int
    pages: tuple[int, ...]
    entries: tuple[int, ...]
    losses: int = 0

    def __str__(self) -> str:
        return f"Offload: pages [{join_items(self.pages)}] to the host tier"


@dataclass(frozen=True, slots=True)
class Gathered(Message):
    """The gathered pages of an `Offload`, in its order. From the stepper to the host tier.

    Attributes:
        arrays: a separate device array for each page; empty if the pages could not be gathered.
    """

    offload_id: int
    entries: tuple[int, ...]
    arrays: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Gathered: {quantity(len(self.arrays), 'page')}"


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
        return f"Drop: {quantity(len(self.entries), 'page')} of the host tier"


class Copy(NamedTuple):
    """The place of a page's copy: an entry of the host tier, or a record on disk."""

    entry: int | None
    record: int | None


@dataclass(frozen=True, slots=True)
class Fetch(OfRequest):
    """Stage pages for a queued request on the device. From the scheduler to the host tier.

    Attributes:
        copies: for each page, the entry of the host tier or, without one, the record of the disk tier.
    """

    copies: tuple[Copy, ...]

    def __str__(self) -> str:
        return f"Fetch: request {self.request_id}, {quantity(len(self.copies), 'page')}"


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
        staged = "not all of them" if self.staged is None else quantity(len(self.staged), "page")
        return f"Fetched: request {self.request_id}, {staged}"


@dataclass(frozen=True, slots=True)
class Archive(Message):
    """Write pages of the host tier to disk. From the scheduler to the host tier.

    Attributes:
        pages: the pages to write, parents before children.
        entries: the host-tier entry of each page.
        used_records: records with a prefix used since the last `Archive`.
    """

    pages: tuple[NewPage, ...]
    entries: tuple[int, ...]
    used_records: tuple[int, ...]

    def __str__(self) -> str:
        return f"Archive: {quantity(len(self.pages), 'page')}"


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
        return f"Write: {quantity(len(self.pages), 'page')}"


@dataclass(frozen=True, slots=True)
class Written(Message):
    """The outcome of a `Write`. From the disk tier to the scheduler.

    Attributes:
        records: the record of each page; None if it could not be written.
        pruned: records removed from the disk to make room.
    """

    records: tuple[int | None, ...]
    pruned: tuple[int, ...]

    def __str__(self) -> str:
        return f"Written: {quantity(sum(record is not None for record in self.records), 'page')}"


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
        complete: whether every cached page is on disk.
    """

    ticket: int
    pages: int
    complete: bool

    def __str__(self) -> str:
        return f"CacheSaved: {quantity(self.pages, 'page')}"
