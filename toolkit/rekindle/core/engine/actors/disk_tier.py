"""The disk tier: the actor writing pages of the prefix cache to the snapshot store, concurrently with ticks."""

import numpy as np
from anyio import to_thread

from rekindle.core.concurrency.warning import warn
from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.errors import StorageError
from rekindle.core.messages import Message, Write, Written
from rekindle.core.messages.message import wrong_receiver
from rekindle.core.store.snapshot_store import SnapshotStore


class DiskTier:
    """The disk tier actor: writes batches of pages, one after the other, in a worker thread.

    Args:
        store: destination of the pages; None discards them.
    """

    def __init__(self, store: SnapshotStore | None):
        self._store = store
        self._warned = False

    async def handle(self, message: Message) -> list[Message]:
        """Answer Write with Written."""
        if not isinstance(message, Write):
            raise wrong_receiver("disk tier", message)
        if self._store is None:
            return [_nothing_written(message)]
        return [await to_thread.run_sync(with_overrides, self._write, self._store, message, abandon_on_cancel=True)]

    def _write(self, store: SnapshotStore, message: Write) -> Written:
        places = [place for place, content in enumerate(message.contents) if content is not None]
        contents = [np.asarray(message.contents[place]) for place in places]
        try:
            store.use(message.used_records)
            outcome = store.write([message.pages[place] for place in places], contents)
        except StorageError as error:  # the directory has become unsafe since it was opened
            if not self._warned:
                self._warned = True
                warn(f"cached pages are not written to disk: {error}")
            return _nothing_written(message)
        records = dict(zip(places, outcome.records, strict=True))
        full = outcome.full and len(places) == len(message.pages)
        return Written(tuple(records.get(place) for place in range(len(message.pages))), outcome.pruned, full)


def _nothing_written(message: Write) -> Written:
    return Written((None,) * len(message.pages), ())
