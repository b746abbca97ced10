"""How far a batch is: what its progress bar says while it is waited for."""

from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter

from rekindle.client.batches.requested import Requested
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.markup import counted
from rekindle.notebook.board.rates import Rates
from rekindle.notebook.progress_bars import ProgressBars

DELAY_SECONDS = 1.0
"""How long a batch takes before it gets a bar."""
LOOKED_AT_SECONDS = 0.5
"""How often the bar changes; each look reads the counts of all requests."""


def watched(requested: Requested, longest: int | None, progress: bool) -> Waits[None]:
    """Wait until a batch is over, and draw how far it is once it has taken a while.

    Args:
        longest: `max_tokens`; None if only the context limits it.
        progress: whether to draw it.
    """
    pace = Pace(requested, longest)
    pace.report()  # from which the first rate is reckoned
    return drawn(requested, pace.report, progress)


def drawn(requested: Requested, report: Callable[[], Progress], progress: bool) -> Waits[None]:
    """Wait as `watched` does, and draw what `report` says."""
    __tracebackhide__ = True  # a cell shows errors without such frames
    if not progress:
        yield Wait(requested.ends)
        return
    yield Wait(requested.ends, timeout=DELAY_SECONDS)
    if requested.ends.closed:
        return
    with ProgressBars(enabled=True) as bars:
        while not requested.ends.closed:
            bars.show(report())
            yield Wait(requested.ends, timeout=LOOKED_AT_SECONDS)
        bars.show(report())


class Pace:
    """The progress of a batch, whose tokens per second and time left come from how it went so far."""

    def __init__(self, requested: Requested, longest: int | None):
        self._requested, self._longest = requested, longest
        self._began = perf_counter()
        self._rates = Rates()

    def report(self) -> Progress:
        """Return how many answers have ended, how fast tokens come now, and how long the rest will take."""
        handles = self._requested.handles
        running = [handle.record.generated for handle in handles if not handle.done]
        tokens, ended = sum(handle.record.generated for handle in handles), len(handles) - len(running)
        now, done, total = perf_counter() - self._began, len(self._requested.ends.items), len(self._requested)
        rate = self._rates.look(now, tokens).now
        said = ["answers"]
        if rate is not None:
            said.append(f"{counted(round(rate), 'token')}/s")
            if tokens and running and (missing := self._missing(running, tokens, ended)) is not None:
                said.append(f"{'' if ended else 'at most '}{in_words(missing * now / tokens)} left")
        return Progress("generating", done, total, ", ".join(said))

    def said(self) -> str:
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
