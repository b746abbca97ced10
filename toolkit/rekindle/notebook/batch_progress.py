"""How far several requests are: counts, speed and the time that is left, in a bar for calls that take a while."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf
from time import perf_counter

from rekindle.client.batches.run import BatchRun
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.markup import quantity
from rekindle.notebook.board.rates import Rates
from rekindle.notebook.progress_bars import ProgressBars

DELAY_SECONDS = 1.0
"""How long a call takes before it gets a bar."""
LOOKED_AT_SECONDS = 0.5
"""How often the bar changes; each look reads the counts of all requests."""


class LateBar:
    """The bar of a call that takes longer than a second.

    Args:
        report: returns the progress of the call.
        enabled: whether to draw it.
    """

    def __init__(self, report: Callable[[], Progress], *, enabled: bool):
        self._report, self._enabled = report, enabled
        self._next = perf_counter() + DELAY_SECONDS
        self._bars: ProgressBars | None = None
        self._drawing = ExitStack()

    @property
    def timeout(self) -> float | None:
        """The seconds until the next look; None if nothing is drawn."""
        return max(0.0, self._next - perf_counter()) if self._enabled else None

    def look(self) -> None:
        """Draw the progress, if it is time to."""
        now = perf_counter()
        if not self._enabled or now < self._next:
            return
        self._next = now + LOOKED_AT_SECONDS
        if self._bars is None:
            self._bars = self._drawing.enter_context(ProgressBars(enabled=True))
        self._bars.show(self._report())

    def close(self) -> None:
        """Draw the last state, if there is a bar, and leave it."""
        if self._bars is not None:
            self._bars.show(self._report())
        self._bars, self._enabled = None, False
        self._drawing.close()


def drawn(ends: Feed[int], report: Callable[[], Progress], *, enabled: bool) -> Waits[None]:
    """Wait until a feed of ends is closed, and draw the progress of what it is of."""
    __tracebackhide__ = True  # a cell shows errors without such frames
    bar = LateBar(report, enabled=enabled)
    try:
        while not ends.closed:
            yield Wait(ends, timeout=bar.timeout)
            if not ends.closed:
                bar.look()
    finally:
        bar.close()


class BatchProgress:
    """The progress of generations, with tokens per second over the last seconds.

    Args:
        stage: what is done, as in "mapping".

    Attributes:
        began: when this was made, in seconds of `time.perf_counter`.
    """

    def __init__(self, stage: str):
        self._stage, self.began = stage, perf_counter()
        self._rates = Rates()
        self._rates.look(self.began, 0)

    def report(self, done: int, total: int | None, tokens: int, left: str) -> Progress:
        """Return how many answers there are, the speed once it is known, and the time left in words."""
        rate = self._rates.look(perf_counter(), tokens).now
        speed = "" if rate is None else f"{quantity(round(rate), 'token')}/s"
        return Progress(self._stage, done, total, ", ".join(filter(None, ("answers", speed, left))))


class BatchPace:
    """The progress of a batch, whose time left comes from how it went so far.

    Args:
        longest: `max_tokens`; None if only the context limits it.
    """

    def __init__(self, run: BatchRun, longest: int | None):
        self._run, self._longest = run, longest
        self._pace = BatchProgress("generating")

    def report(self) -> Progress:
        """Return how many answers have ended, how fast tokens come now, and how long the rest will take."""
        handles = self._run.handles
        running = [handle.record.generated for handle in handles if not handle.done]
        tokens, ended = sum(handle.record.generated for handle in handles), len(handles) - len(running)
        left = ""
        if tokens and running and (missing := self._missing(running, tokens, ended)) is not None:
            seconds = missing * (perf_counter() - self._pace.began) / tokens
            left = f"{'' if ended else 'at most '}{in_words(seconds)} left"
        return self._pace.report(len(self._run.ends.items), len(self._run), tokens, left)

    def line(self) -> str:
        """Return the same on one line."""
        report = self.report()
        return f"{report.done:,} of {report.total:,} {report.unit}"

    def _missing(self, running: Sequence[int], tokens: int, ended: int) -> float | None:
        """Return how many tokens are still to come; None if nothing is known about that.

        Any token is taken to be as likely as any other to be the last of its request, which does not take the requests
        that end early for typical ones.

        Args:
            running: the tokens of each request that has not ended.
            tokens: those of all requests.
            ended: how many requests have ended.
        """
        most = inf if self._longest is None else self._longest
        each = tokens / ended if ended else inf
        missing = sum(min(each, most - count) for count in running)
        return missing if missing < inf else None


def in_words(seconds: float) -> str:
    """Return an estimate of a time in words, without digits that would flicker."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
