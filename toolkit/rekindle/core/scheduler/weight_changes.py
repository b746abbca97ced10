"""Changes of weights: the moment of each change, and the end of requests and cached pages of the old weights."""

from collections import deque
from collections.abc import Iterator

from rekindle.core.messages import Message, NewWeights, UseWeights
from rekindle.core.scheduler.requests.table import RequestTable
from rekindle.core.scheduler.writeback import DiskWriteback


class WeightChanges:
    """Queue of new weights, waiting for the requests on the old weights.

    The `Scheduler` owns the queue, and calls `change` after each message.

    Args:
        table: the requests, with the groups' cached pages, and the version of the weights in use.
        writeback: stops at the first new version.

    Attributes:
        asleep: whether the device has no weights, in a sleeping engine.
    """

    def __init__(self, table: RequestTable, writeback: DiskWriteback):
        self._table = table
        self._writeback = writeback
        self._queue: deque[NewWeights] = deque()
        self.asleep = False

    @property
    def pending(self) -> bool:
        """True if new weights wait."""
        return bool(self._queue)

    @property
    def drains(self) -> bool:
        """True if the next weights are for started requests too, so that only ticks in flight use the old ones.

        Observed positions of one prompt are all of the same weights, so the rest of them is computed first.
        """
        if not self._queue or self._queue[0].in_flight != "keep":
            return False
        return not any(state.observed.is_divided for state in self._table)

    def add(self, new: NewWeights) -> None:
        """Queue new weights."""
        self._queue.append(new)

    def withdraw(self, ticket: int) -> bool:
        """Remove the new weights of a ticket; return False if none of the ticket wait."""
        for new in self._queue:
            if new.ticket == ticket:
                self._queue.remove(new)
                return True
        return False

    def change(self, in_flight: int) -> Iterator[Message]:
        """Use new weights once the requests started on the old weights have ended or can go on, and forget the cache.

        Args:
            in_flight: the number of ticks in flight.
        """
        for new in [new for new in self._queue if new.in_flight == "fail"]:
            for state in [state for state in self._table if state.started]:
                yield self._table.reject(state, new.failure)
        while self._may_change(in_flight):
            new = self._queue.popleft()
            for state in self._table.running[::-1]:
                self._table.preempt(state)
            self._table.waiting.forget_cache()
            self._forget_pages(new)
            self.asleep = new.asleep
            yield UseWeights(new.ticket, new.weights, self._table.exchanges, new.asleep)

    def _may_change(self, in_flight: int) -> bool:
        """Return True if no request would compute one token with the old and the new weights."""
        if not self._queue:
            return False
        if self.asleep:  # requests kept meanwhile go on with any weights
            return True
        if self._queue[0].asleep and in_flight:
            return False
        return (self.drains and not in_flight) or not any(state.started for state in self._table)

    def _forget_pages(self, new: NewWeights) -> None:
        """Forget the pages on the device of an engine that goes to sleep, and all pages of other weights."""
        version = self._table.exchanges + (not new.asleep) if new.version is None else new.version
        if new.asleep or new.has_tower:
            self._table.gallery.lose_device()
            self._table.gallery.is_first_tower &= not new.has_tower
        for group in self._table.groups:
            if new.asleep:
                group.cache.lose_device()
            elif version != self._table.exchanges:
                group.cache.forget()
        if version != self._table.exchanges:
            self._writeback.stop()
            self._table.drafter.forget()
        self._table.exchanges = version
