"""Outbox of messages to the host tier, in the order of the caches' decisions."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rekindle.core.messages import Drop, Message, Offload

MOST_PAGES: Final = 16
"""Pages in a message. A tick that evicts pages for many rows sends few messages, and its copies need little memory."""


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
        """Queue a copy of pages, and of the states of slots, to new entries; return the number of the offload.

        The last queued offload takes further pages, so several calls may get one number.
        """
        match self._offloads:
            case [*_, Offload(slots=(), losses=before) as last] if (
                not slots and before == losses and len(last.pages) + len(pages) <= MOST_PAGES
            ):
                self._offloads[-1] = replace(last, pages=last.pages + pages, entries=last.entries + entries)
            case _:
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
