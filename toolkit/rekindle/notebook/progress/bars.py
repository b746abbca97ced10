"""Progress display: a bar in a notebook or a terminal, a few lines in a log."""

import logging
import shutil
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from rekindle import markup
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.core.words import size_text
from rekindle.notebook import front_end
from rekindle.notebook.log import log

SECONDS = 1.0
"""The time between two calls."""


class Clock:
    """A thread to call a function every second until `stop`."""

    def __init__(self, function: Callable[[], None]):
        self._function = function
        self._stop_event = threading.Event()
        self._thread = front_end.thread(self._run, "rekindle-progress")
        self._thread.start()

    def stop(self) -> None:
        """Stop the clock, and wait for a running call."""
        self._stop_event.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop_event.wait(SECONDS):
            self._function()


REDRAW_SECONDS = 0.2
"""The minimum time between two updates, except for the last one."""
COLUMNS = "minmax(0,min(15em,28%)) minmax(3em,1fr) minmax(0,min(21em,36%))"
"""The widths of label, rail and figures. They are the same for all bars, so that the rails are below each other."""


class CellBar:
    """A bar in the output of the running cell, drawn at once and then every second."""

    def __init__(self, progress: Progress):
        self._latest = progress
        self._start = monotonic()
        self._last_draw = self._start - REDRAW_SECONDS
        self._lock = threading.Lock()
        self._output = front_end.CellOutput()
        self._draw()
        self._clock = Clock(self._draw)

    def show(self, progress: Progress) -> None:
        """Draw a report, unless the last update was just now."""
        self._latest = progress
        if progress.done == progress.total or monotonic() >= self._last_draw + REDRAW_SECONDS:
            self._draw()

    def close(self) -> None:
        """Draw the last state of the bar, or remove the bar if nothing was done."""
        if not self._latest.done:
            self.drop()
        else:
            self._clock.stop()
            self._draw()

    def drop(self) -> None:
        """Remove the bar."""
        self._clock.stop()
        self._output.draw(front_end.EMPTY)

    def _draw(self) -> None:
        with self._lock:
            now = monotonic()
            self._last_draw = now
            self._output.draw(bar_bundle(self._latest, now - self._start))


def bar_bundle(progress: Progress, seconds: float) -> markup.Bundle:
    """Return the bar after `seconds` seconds, as text and as HTML."""
    parts = [*([progress.amount] if progress.amount else []), f"{seconds:.0f} s"]
    if progress.unit == "B" and seconds >= 1 and progress.done:
        parts.insert(1, f"{size_text(round(progress.done / seconds))}/s")
    if remaining := progress.remaining(seconds):
        parts.append(remaining)
    text = ", ".join(parts)
    figures = ", ".join(map(markup.unbroken, text.split(", ")))
    share = progress.done / progress.total if progress.total else 0.0
    filled = f'<span style="display:block;height:100%;width:{100 * share:.1f}%;background:rgb({markup.EMBER})"></span>'
    style = (
        f"display:grid;grid-template-columns:{COLUMNS};align-items:center;gap:0 0.8em;max-width:60em;line-height:1.5"
    )
    rail = "height:0.6em;border-radius:3px;overflow:hidden;background:rgba(128,128,128,0.25)"
    has_share = progress.total and progress.unit
    now = f' aria-valuenow="{100 * share:.0f}"' if has_share else ""  # no value: indeterminate progress
    role = (
        f'role="progressbar" aria-label="{markup.visible(progress.stage)}" aria-valuemin="0" aria-valuemax="100"{now}'
    )
    html = (
        f'<div style="{style}"><span>{markup.visible(progress.stage)}</span> '
        f'<span {role} style="{rail}">{filled}</span> '
        f'<span style="font-variant-numeric:tabular-nums;{markup.PALE}">{figures}</span></div>'
    )
    return markup.bundle(f"{progress.stage}: {text}", html)


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
