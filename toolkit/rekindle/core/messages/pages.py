"""How pages move between the device, the host tier and the disk."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from rekindle.core.markup import quantity
from rekindle.core.messages.message import Message, OfRequest
from rekindle.core.messages.words import join_items
from rekindle.core.page import NewPage


@dataclass(frozen=True, slots=True)
class Offload(Message):
    """Copy pages to the host tier, as they are between the plans said before and after this.

    Attributes:
        entries: the number by which the copy of each page is known, higher than in any `Offload` before.
        losses: as of a `Plan`: pages of a state that is lost by now are not copied.
    """

    offload_id: int
    pages: tuple[int, ...]
    entries: tuple[int, ...]
    losses: int = 0

    def __str__(self) -> str:
        return f"Offload: pages [{join_items(self.pages)}] to the host tier"


@dataclass(frozen=True, slots=True)
class Gathered(Message):
    """The pages of an `Offload`, in its order, each in a device array of its own; none where that could not be."""

    offload_id: int
    entries: tuple[int, ...]
    arrays: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Gathered: {quantity(len(self.arrays), 'page')}"


@dataclass(frozen=True, slots=True)
class Offloaded(Message):
    """The host tier has the entries of an `Offload`, or could keep none of them."""

    offload_id: int
    is_stored: bool

    def __str__(self) -> str:
        return "Offloaded: kept" if self.is_stored else "Offloaded: not kept"


@dataclass(frozen=True, slots=True)
class Drop(Message):
    """Entries of the host tier are no longer needed; it may be said before their `Offloaded`."""

    entries: tuple[int, ...]

    def __str__(self) -> str:
        return f"Drop: {quantity(len(self.entries), 'page')} of the host tier"


class Copy(NamedTuple):
    """Where a page is beside the device tier: the number of an entry of the host tier, or of a record on disk."""

    entry: int | None
    record: int | None


@dataclass(frozen=True, slots=True)
class Fetch(OfRequest):
    """A request is going to use these pages, which are not in the device tier: stage them on the device.

    Attributes:
        copies: of each page, the entry of the host tier or, where it has none, the record of the disk tier.
    """

    copies: tuple[Copy, ...]

    def __str__(self) -> str:
        return f"Fetch: request {self.request_id}, {quantity(len(self.copies), 'page')}"


@dataclass(frozen=True, slots=True)
class Fetched(OfRequest):
    """The answer to a `Fetch`.

    Attributes:
        staged: for an `Onload`, one for each copy; None if there is not one for each.
        bad: the copies that could not be read.
    """

    staged: tuple[Any, ...] | None
    bad: tuple[Copy, ...] = ()

    def __str__(self) -> str:
        staged = "not all of them" if self.staged is None else quantity(len(self.staged), "page")
        return f"Fetched: request {self.request_id}, {staged}"


@dataclass(frozen=True, slots=True)
class Archive(Message):
    """Write pages that the host tier has to disk.

    Attributes:
        entries: where the host tier has each.
        used_records: records whose prefixes were used since the last `Archive`.
    """

    pages: tuple[NewPage, ...]
    entries: tuple[int, ...]
    used_records: tuple[int, ...]

    def __str__(self) -> str:
        return f"Archive: {quantity(len(self.pages), 'page')}"


@dataclass(frozen=True, slots=True)
class Write(Message):
    """An `Archive` with the content of each page; None for one that the host tier lacks."""

    pages: tuple[NewPage, ...]
    contents: tuple[Any, ...]
    used_records: tuple[int, ...]

    def __str__(self) -> str:
        return f"Write: {quantity(len(self.pages), 'page')}"


@dataclass(frozen=True, slots=True)
class Written(Message):
    """The outcome of a `Write`; each is answered in its turn.

    Attributes:
        records: of each page; None for one that could not be written.
        pruned: records that are no longer valid.
    """

    records: tuple[int | None, ...]
    pruned: tuple[int, ...]

    def __str__(self) -> str:
        return f"Written: {quantity(sum(record is not None for record in self.records), 'page')}"


@dataclass(frozen=True, slots=True)
class SaveCache(Message):
    """A caller wants all cached pages to be on disk."""

    ticket: int


@dataclass(frozen=True, slots=True)
class CacheSaving(Message):
    """Cached pages are on their way to disk; said to the caller who asked.

    Attributes:
        pages: written since the caller asked.
        total: those, and those that are left to write.
    """

    ticket: int
    pages: int
    total: int

    def __str__(self) -> str:
        return f"CacheSaving: {self.pages} of {quantity(self.total, 'page')} so far"


@dataclass(frozen=True, slots=True)
class CacheSaved(Message):
    """All pages that were cached are on disk, or as many as can be.

    Attributes:
        pages: written since the caller asked.
        complete: whether all of them are there.
    """

    ticket: int
    pages: int
    complete: bool

    def __str__(self) -> str:
        return f"CacheSaved: {quantity(self.pages, 'page')}"
