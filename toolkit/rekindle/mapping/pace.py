"""Progress of a map: finished items, token rate and remaining time."""

from rekindle.core.concurrency.progress import Progress
from rekindle.mapping.in_flight import InFlight
from rekindle.notebook.progress.batch_progress import BatchProgress


class MapPace:
    """Counts of a map's finished items, and their progress report.

    Args:
        in_flight: the requests of the map.
        total: the number of items; None if unknown.
    """

    def __init__(self, in_flight: InFlight, total: int | None):
        self._in_flight, self._total = in_flight, total
        self._pace = BatchProgress("mapping")
        self._done = self._stored = 0

    def count(self, *, stored: bool) -> None:
        """Count a finished item; `stored` if its answer came from the file of an earlier call."""
        self._done += 1
        self._stored += stored

    def complete(self) -> None:
        """Set the total to the number of finished items, after the last item."""
        self._total = self._done

    def report(self) -> Progress:
        """Return the finished items, the current token rate, and the remaining time."""
        remaining = ""
        if self._total is not None:
            remaining = self._pace.remaining(self._total - self._done, self._done - self._stored)
        return self._pace.report(self._done, self._total, self._in_flight.tokens, remaining)
