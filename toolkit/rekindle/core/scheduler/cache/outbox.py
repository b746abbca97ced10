"""Outbox of messages to the host tier, in the order of the caches' decisions."""

import itertools
from collections.abc import Iterable

from rekindle.core.messages import Drop, Message, Offload


class HostTierOutbox:
    """Queued offloads and drops. Entries are numbered over all caches, as the host tier expects."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._offloads: list[Offload] = []
        self._dropped: list[int] = []

    def entry(self) -> int:
        """Return the number of a new entry."""
        return next(self._ids)

    def offload(
        self, pages: tuple[int, ...], entries: tuple[int, ...], losses: int, slots: tuple[int, ...] = ()
    ) -> int:
        """Queue a copy of pages, and of the states of slots, to new entries; return the number of the offload."""
        self._offloads.append(Offload(next(self._ids), pages, entries, losses, slots))
        return self._offloads[-1].offload_id

    def drop(self, entries: Iterable[int]) -> None:
        """Queue the removal of unused entries."""
        self._dropped += entries

    def drain(self) -> list[Message]:
        """Remove and return the queued messages; send them before the next plan overwrites the pages."""
        messages: list[Message] = [*self._offloads]
        if self._dropped:
            messages.append(Drop(tuple(self._dropped)))
        self._offloads, self._dropped = [], []
        return messages
