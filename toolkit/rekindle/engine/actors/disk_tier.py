"""The disk tier: the actor that writes pages of the prefix cache to the snapshot store, beside the ticks."""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from anyio import to_thread

from rekindle.errors import StorageError
from rekindle.messages import Message, Write, Written
from rekindle.page import NewPage


class Outcome(Protocol):
    """What `Store.write` did: as `rekindle.store.snapshot_store.Written`."""

    @property
    def records(self) -> tuple[int | None, ...]: ...
    @property
    def pruned(self) -> tuple[int, ...]: ...


class Store(Protocol):
    """As `rekindle.store.snapshot_store.SnapshotStore`."""

    def write(self, pages: Sequence[NewPage], arrays: Sequence[np.ndarray[Any, np.dtype[Any]]]) -> Outcome: ...
    def use(self, records: Sequence[int], /) -> None: ...


class DiskTier:
    """Writes what it is given, one batch after the other, in a worker thread.

    Args:
        store: where to; None keeps nothing.
    """

    def __init__(self, store: Store | None):
        self._store = store

    async def handle(self, message: Message) -> list[Message]:
        """Write becomes Written."""
        if not isinstance(message, Write):
            raise TypeError(f"the disk tier takes Write, got {message!r}")
        if self._store is None:
            return [Written((None,) * len(message.pages), ())]
        return [await to_thread.run_sync(_written, self._store, message, abandon_on_cancel=True)]


def _written(store: Store, message: Write) -> Written:
    try:
        return _stored(store, message)
    except StorageError as error:  # the directory has become unsafe since it was opened
        warnings.warn(f"cached pages are not written to disk: {error}", RuntimeWarning, stacklevel=2)
        return Written((None,) * len(message.pages), ())


def _stored(store: Store, message: Write) -> Written:
    store.use(message.used)
    there = [place for place, content in enumerate(message.contents) if content is not None]
    contents = [np.asarray(message.contents[place]) for place in there]
    outcome = store.write([message.pages[place] for place in there], contents)
    records = dict(zip(there, outcome.records, strict=True))
    return Written(tuple(records.get(place) for place in range(len(message.pages))), outcome.pruned)
