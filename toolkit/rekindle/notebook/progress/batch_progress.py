"""Progress of several requests: counts, speed and remaining time, with a bar for long calls."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf
from time import perf_counter

from rekindle.client.batches.drawing import Report
from rekindle.client.batches.run import BatchRun
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress, duration_text
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.words import quantity
from rekindle.notebook.board.rates import Rates
from rekindle.notebook.progress.bars import ProgressBars

DELAY_SECONDS = 1.0
"""The maximum duration of a call without a bar."""
LEAST_SHARE, LEAST_AMOUNT, LEAST_SECONDS = 0.05, 100, 30.0
"""The basis of an estimate: a share of the work, or an amount and a time. The first answers come late, all at once."""
POLL_SECONDS = 0.5
"""The interval between two updates of the bar; each update reads the counts of all requests."""


class LateBar:
    """Progress bar of a call, displayed after its first second.

    Args:
        report: a function to get the progress of the call.
        enabled: False to draw nothing.
    """

    def __init__(self, report: Callable[[], Progress], *, enabled: bool):
        self._report, self._enabled = report, enabled
        self._next = perf_counter() + DELAY_SECONDS
        self._bars: ProgressBars | None = None
        self._drawing = ExitStack()

    @property
    def timeout(self) -> float | None:
        """The seconds until the next update; None if disabled."""
        return max(0.0, self._next - perf_counter()) if self._enabled else None

    def look(self) -> None:
        """Draw the progress if the next update is due."""
        now = perf_counter()
        if not self._enabled or now < self._next:
            return
        self._next = now + POLL_SECONDS
        if self._bars is None:
            self._bars = self._drawing.enter_context(ProgressBars(enabled=True))
        self._bars.show(self._report())

    def close(self) -> None:
        """Draw the last state of the bar, if any, and stop the updates."""
        if self._bars is not None:
            self._bars.show(self._report())
        self._bars, self._enabled = None, False
        self._drawing.close()


def draw_progress(ends: Feed[int], report: Callable[[], Progress], *, enabled: bool) -> Waits[None]:
    """Wait until a feed of ends is closed, and draw the progress meanwhile."""
    __tracebackhide__ = True  # hidden in tracebacks of cells
    bar = LateBar(report, enabled=enabled)
    try:
        while not ends.closed:
            yield Wait(ends, timeout=bar.timeout)
            if not ends.closed:
                bar.look()
    finally:
        bar.close()


class BatchProgress:
    """The progress of generations, with the recent speed in tokens per second.

    Args:
        stage: the name of the activity, such as "mapping".

    Attributes:
        began: the time of creation, in seconds of `time.perf_counter`.
    """

    def __init__(self, stage: str):
        self._stage, self.began = stage, perf_counter()
        self._rates = Rates()
        self._rates.look(self.began, 0)

    def remaining(self, missing: float, computed: float) -> str:
        """Return the remaining time as text, at the speed so far; empty without a basis.

        Args:
            missing, computed: the amounts to do and done by this call, in one unit. Answers of earlier calls are in
                neither.
        """
        seconds = perf_counter() - self.began
        has_amount = computed >= LEAST_AMOUNT and seconds >= LEAST_SECONDS
        if not missing or not (has_amount or computed >= LEAST_SHARE * (computed + missing)):
            return ""
        return f"{duration_text(missing * seconds / computed)} left"

    def report(self, done: int, total: int | None, tokens: int, remaining: str) -> Progress:
        """Return the progress: the number of answers, the speed if known, and the text of the remaining time."""
        rate = self._rates.look(perf_counter(), tokens).now
        speed = "" if rate is None else f"{quantity(round(rate), 'token')}/s"
        return Progress(self._stage, done, total, ", ".join(filter(None, ("answers", speed, remaining))))


class BatchPace:
    """The progress of a batch, with a remaining time estimated from its speed so far.

    Args:
        run: the batch.
        longest: `max_tokens`; None if only the context is a limit.
        awaited: a function to get the progress of the compilation awaited by the engine; its result may be None.
    """

    def __init__(self, run: BatchRun, longest: int | None, awaited: Report):
        self._run, self._longest, self._awaited = run, longest, awaited
        self._progress = BatchProgress("generating")

    def report(self) -> Progress:
        """Return the number of finished answers, the current speed and the estimated remaining time.

        While a program is compiled, no token comes, so there is its description instead of an estimate.
        """
        handles = self._run.handles
        running = [handle.record.generated for handle in handles if not handle.done]
        tokens, ended = sum(handle.record.generated for handle in handles), len(handles) - len(running)
        remaining = ""
        if waiting := self._awaited():
            remaining = waiting.stage
        elif tokens and running and (missing := self._missing(running, tokens, ended)) is not None:
            remaining = self._progress.remaining(missing, tokens)
            remaining = f"at most {remaining}" if remaining and not ended else remaining
        return self._progress.report(len(self._run.ends.items), len(self._run), tokens, remaining)

    def line(self) -> str:
        """Return the progress on one line."""
        report = self.report()
        return f"{report.done:,} of {report.total:,} {report.unit}"

    def _missing(self, running: Sequence[int], tokens: int, ended: int) -> float | None:
        """Return the expected number of tokens still to come; None without a basis for an estimate.

        The estimate assumes the same probability of an end at every token, because the first requests to end are
        shorter than typical ones.

        Args:
            running: the number of tokens of each unfinished request.
            tokens: the number of tokens of all requests.
            ended: the number of finished requests.
        """
        most = inf if self._longest is None else self._longest
        each = tokens / ended if ended else inf
        missing = sum(min(each, most - count) for count in running)
        return missing if missing < inf else None
