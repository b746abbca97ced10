"""The progress bar of a map."""

from contextlib import ExitStack
from time import perf_counter

from rekindle.client.batches.pace import DELAY_SECONDS, LOOKED_AT_SECONDS, in_words
from rekindle.core.concurrency.progress import Progress
from rekindle.core.markup import counted
from rekindle.mapping.flight import Flight
from rekindle.notebook.board.rates import Rates
from rekindle.notebook.progress_bars import ProgressBars


class Bar:
    """A bar that says how far a map is, drawn once it has taken a while.

    Args:
        flight: its requests.
        total: how many items there are; None if nobody knows.
        enabled: whether to draw it.
    """

    def __init__(self, flight: Flight, total: int | None, *, enabled: bool):
        self._flight, self._total, self._enabled = flight, total, enabled
        self._began = self._looked = perf_counter()
        self._rates = Rates()
        self._rates.look(self._began, 0)
        self._done = self._stored = 0
        self._bars: ProgressBars | None = None
        self._drawing = ExitStack()

    @property
    def timeout(self) -> float | None:
        """Seconds that a wait may take before the next look; None if nothing is drawn."""
        return LOOKED_AT_SECONDS if self._enabled else None

    def count(self, *, stored: bool) -> None:
        """Take note of an item that is done, be it by an earlier call, whose answer is stored."""
        self._done += 1
        self._stored += stored

    def look(self) -> None:
        """Draw how far the map is, if it is time to."""
        now = perf_counter()
        if not self._enabled or now < max(self._began + DELAY_SECONDS, self._looked + LOOKED_AT_SECONDS):
            return
        self._looked = now
        if self._bars is None:
            self._bars = self._drawing.enter_context(ProgressBars(enabled=True))
        self._bars.show(self.report())

    def report(self) -> Progress:
        """Return how many items are done, how fast tokens come now, and how long the rest will take."""
        now, said = perf_counter(), ["answers"]
        rate = self._rates.look(now, self._flight.tokens).now
        if rate is not None:
            said.append(f"{counted(round(rate), 'token')}/s")
        made = self._done - self._stored
        if self._total is not None and made and self._done < self._total:
            said.append(f"{in_words((self._total - self._done) * (now - self._began) / made)} left")
        return Progress("mapping", self._done, self._total, ", ".join(said))

    def close(self, *, complete: bool) -> None:
        """Draw the last state, if there is a bar, and leave it.

        Args:
            complete: there are no more items, so it is known by now how many there were.
        """
        self._total = self._done if complete else self._total
        if self._bars is not None:
            self._bars.show(self.report())
        self._bars, self._enabled = None, False
        self._drawing.close()
