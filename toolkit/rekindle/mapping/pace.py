"""How far a map is."""

from time import perf_counter

from rekindle.core.concurrency.progress import Progress
from rekindle.mapping.in_flight import InFlight
from rekindle.notebook.batch_progress import BatchProgress, in_words


class MapPace:
    """The progress of a map.

    Args:
        in_flight: its requests.
        total: how many items there are; None if nobody knows.
    """

    def __init__(self, in_flight: InFlight, total: int | None):
        self._in_flight, self._total = in_flight, total
        self._pace = BatchProgress("mapping")
        self._done = self._stored = 0

    def count(self, *, stored: bool) -> None:
        """Count an item that is done, be it by an earlier call, whose answer is stored."""
        self._done += 1
        self._stored += stored

    def complete(self) -> None:
        """Count no further: there are no more items, so it is known by now how many there were."""
        self._total = self._done

    def report(self) -> Progress:
        """Return how many items are done, how fast tokens come now, and how long the rest will take."""
        made, left = self._done - self._stored, ""
        if self._total is not None and made and self._done < self._total:
            seconds = (self._total - self._done) * (perf_counter() - self._pace.began) / made
            left = f"{in_words(seconds)} left"
        return self._pace.report(self._done, self._total, self._in_flight.tokens, left)
