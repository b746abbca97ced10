"""What the host tier is to be told, in the order in which the caches of all groups decide it."""

import itertools
from collections.abc import Iterable

from rekindle.core.messages import Drop, Message, Offload


class HostTierOutbox:
    """Offloads and drops that are to be said. Entries are numbered over all caches, as the host tier expects it."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._offloads: list[Offload] = []
        self._dropped: list[int] = []

    def entry(self) -> int:
        """Return the number of a new entry."""
        return next(self._ids)

    def offload(self, pages: tuple[int, ...], entries: tuple[int, ...], losses: int) -> int:
        """Have pages copied to these new entries; return the number of the offload."""
        self._offloads.append(Offload(next(self._ids), pages, entries, losses))
        return self._offloads[-1].offload_id

    def drop(self, entries: Iterable[int]) -> None:
        """Have entries dropped that nobody needs any more."""
        self._dropped += entries

    def said(self) -> list[Message]:
        """Return what the host tier is to be told, once; it must be told before the next plan overwrites pages."""
        said: list[Message] = [*self._offloads]
        if self._dropped:
            said.append(Drop(tuple(self._dropped)))
        self._offloads, self._dropped = [], []
        return said
