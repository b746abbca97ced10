"""Progress display: a bar in a notebook or a terminal, a few lines in a log."""

import logging
import shutil
import sys
import threading
from time import monotonic
from typing import Any

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.notebook import front_end
from rekindle.notebook.log import log
from rekindle.notebook.progress.cell_bar import CellBar
from rekindle.notebook.progress.clock import Clock

_WITH_TOTAL = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit}, {elapsed}"
_NO_TOTAL = "{desc}: {n_fmt} {unit}, {elapsed}"
_NO_PARTS = "{desc}: {elapsed}"
_BYTES = "{desc}: {percentage:3.0f}%|{bar}| {total_fmt}B"
_LINE_SECONDS = 10.0


class ProgressBars:
    """Context manager for one bar at a time, drawn on the thread that calls `show`.

    Args:
        enabled: False to draw nothing.
        stays: whether a bar of a terminal stays at its end.
        late: whether the wait is long already, for a line of a log at the start of each stage.
    """

    def __init__(self, enabled: bool, *, stays: bool = True, late: bool = False):
        self._enabled, self._stays, self._late = enabled, stays, late
        self._stage = ""
        self._drawing: CellBar | _Bar | _Lines | None = None

    def show(self, progress: Progress) -> None:
        """Draw a report; a new stage ends the bar of the previous stage."""
        if not self._enabled:
            return
        if progress.stage != self._stage:
            self._close()
            self._stage = progress.stage
            # A new stage that is already complete needs no bar.
            self._drawing = None if progress.done == progress.total else _start(progress, self._late)
        if self._drawing is not None:
            self._drawing.show(progress)

    def drop(self) -> None:
        """Remove the bar; plain lines stay."""
        if self._drawing is not None:
            self._drawing.drop()
        self._stage, self._drawing = "", None

    def say(self, line: str) -> None:
        """Write a line below the bars of a notebook cell."""
        if self._enabled and front_end.in_notebook():
            front_end.note(line)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    def _close(self) -> None:
        if isinstance(self._drawing, _Bar) and not self._stays:
            self._drawing.drop()
        elif self._drawing is not None:
            self._drawing.close()


def draw_reports(feed: Feed[Progress], bars: ProgressBars) -> Waits[None]:
    """Draw the reports of a feed until it is closed."""
    count = 0
    while not feed.closed or count < len(feed.items):
        yield Wait(feed, count)
        for report in feed.items[count:]:
            bars.show(report)
            count += 1


class _Bar:
    """A tqdm bar in a terminal, `columns` wide."""

    def __init__(self, progress: Progress, columns: int):
        in_bytes = progress.unit == "B"
        self._bar = _bar_class()(
            desc=progress.stage if len(progress.stage) <= columns // 2 else progress.stage.partition(" (")[0],
            total=progress.total,
            unit=progress.unit,
            unit_scale=in_bytes,
            bar_format=_format(progress, 0.0),
            mininterval=0.2,
            ncols=columns,
        )
        self._start = monotonic()
        self._clock = Clock(self._bar.refresh)

    def show(self, progress: Progress) -> None:
        self._bar.total, self._bar.unit = progress.total, progress.unit
        self._bar.bar_format = _format(progress, monotonic() - self._start)
        self._bar.update(progress.done - self._bar.n)
        if progress.done == progress.total:
            self._bar.refresh()

    def close(self) -> None:
        self._clock.stop()
        if self._bar.n == 0:  # replaced by another stage before any progress
            self._bar.total, self._bar.leave = 0, False
        self._bar.close()

    def drop(self) -> None:
        self._clock.stop()
        self._bar.leave = False
        self._bar.close()


class _Lines:
    """Lines of a log: every ten seconds, and at the end of a stage with such lines.

    The level DEBUG has the start of each stage, and the end of each longer than a second.

    Args:
        late: whether the start of the stage is for all readers of the log, at the level INFO.
    """

    def __init__(self, progress: Progress, late: bool):
        self._start = self._last_line = monotonic()
        self._level = logging.DEBUG
        self._ended = False
        log(progress.stage, logging.INFO if late else logging.DEBUG)

    def show(self, progress: Progress) -> None:
        now = monotonic()
        ended = progress.done == progress.total and now >= self._start + 1.0
        if not self._ended and (ended or now >= self._last_line + _LINE_SECONDS):
            self._last_line, self._ended = now, ended
            self._level = self._level if ended else logging.INFO
            remaining = progress.remaining(now - self._start)
            rest = f", {remaining}" if remaining else ""
            amount = f"{progress.amount}, " if progress.amount else ""
            log(f"{progress.stage}: {amount}{now - self._start:.0f} s{rest}", self._level)

    def close(self) -> None:
        pass

    def drop(self) -> None:
        pass


def _start(progress: Progress, late: bool) -> CellBar | _Bar | _Lines:
    if front_end.in_notebook():
        return CellBar(progress)
    if sys.stderr is not None and sys.stderr.isatty():
        # Four columns stay free for a ^C, so that it does not wrap the line.
        return _Bar(progress, min(100, shutil.get_terminal_size().columns - 4))
    return _Lines(progress, late)


def _format(progress: Progress, seconds: float) -> str | None:
    """Return the format of a bar after `seconds` seconds; None selects tqdm's default, for bytes without a total."""
    if progress.unit == "B" and progress.total is not None:
        rate = "{rate_fmt}" if seconds >= 1 else None
        return ", ".join(filter(None, [_BYTES, rate, progress.remaining(seconds)]))
    if progress.unit == "B":
        return None
    if not progress.unit:
        return _NO_PARTS
    return _NO_TOTAL if progress.total is None else _WITH_TOTAL


def _bar_class() -> Any:
    """Return a subclass of tqdm's bar with a thread lock.

    The default lock would fix the start method of the user's multiprocessing. With other methods than fork, it would
    also start a helper process, with complaints on the terminal after an abrupt end of this process.
    """
    from tqdm.std import tqdm

    bar_class = type("ProgressBar", (tqdm,), {})
    bar_class.set_lock(threading.RLock())  # type: ignore[attr-defined]
    return bar_class
