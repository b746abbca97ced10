"""Progress for whoever waits: a widget in a notebook, a bar in a terminal, a few plain lines in a file or pipe."""

import shutil
import sys
import threading
import warnings
from functools import cache
from time import monotonic
from typing import Any

from rekindle.concurrency.feed import Feed
from rekindle.concurrency.progress import Progress
from rekindle.concurrency.waits import Wait, Waits

_WORDS = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit}, {elapsed}"
_BYTES = "{desc}: {percentage:3.0f}%|{bar}| {total_fmt}B, {rate_fmt}, {remaining}"
_LINE_SECONDS = 10.0
_WIDGET_WORDS = 40  # about what JupyterLab shows in one line beside a bar


class ProgressBars:
    """One bar at a time, or none if not enabled, drawn on the thread that calls `show`. Use it as a context manager."""

    def __init__(self, enabled: bool):
        self._enabled = enabled
        self._stage = ""
        self._drawing: _Bar | _Lines | None = None

    def show(self, progress: Progress) -> None:
        """Draw one report; a new stage ends the bar of the last."""
        if not self._enabled:
            return
        if progress.stage != self._stage:
            self._close()
            self._stage = progress.stage
            # A stage that returns only to say that it has ended needs no bar.
            self._drawing = None if progress.done == progress.total else _start(progress)
        if self._drawing is not None:
            self._drawing.show(progress)

    def __enter__(self) -> "ProgressBars":
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._drawing is not None:
            self._drawing.close()


def shown(feed: Feed[Progress], bars: ProgressBars) -> Waits[None]:
    """Draw the reports of a feed until it is closed."""
    seen = 0
    while not feed.closed or seen < len(feed.items):
        yield Wait(feed, seen)
        for report in feed.items[seen:]:
            bars.show(report)
            seen += 1


class _Bar:
    """A tqdm bar of a class of tqdm's, with so many columns of a terminal, or as a widget.

    A thread keeps its clock going between reports: those of a compiler are many seconds apart.
    """

    def __init__(self, progress: Progress, bar_class: Any, columns: int | None):
        in_bytes = progress.unit == "B"
        room = _WIDGET_WORDS if columns is None else columns // 2
        self._bar = bar_class(
            desc=progress.stage if len(progress.stage) <= room else progress.stage.partition(" (")[0],
            total=progress.total,
            unit=progress.unit,
            unit_scale=in_bytes,
            bar_format=None if progress.total is None else _BYTES if in_bytes else _WORDS,
            mininterval=0.2,
            ncols=columns,
        )
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="rekindle-progress", daemon=True)
        self._clock.start()

    def show(self, progress: Progress) -> None:
        self._bar.total, self._bar.unit = progress.total, progress.unit
        self._bar.update(progress.done - self._bar.n)
        if progress.done == progress.total:
            self._bar.refresh()

    def close(self) -> None:
        self._over.set()
        self._clock.join()
        if self._bar.n == 0:  # another stage has taken its place before it began
            self._bar.total, self._bar.leave = 0, False
        self._bar.close()

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            self._bar.refresh()


class _Lines:
    """A line when a stage starts, one every ten seconds, and one when it ends if it took more than a second."""

    def __init__(self, progress: Progress):
        self._start = self._written = monotonic()
        self._line(progress.stage)

    def show(self, progress: Progress) -> None:
        now = monotonic()
        ended = progress.done == progress.total and now >= self._start + 1.0
        if ended or now >= self._written + _LINE_SECONDS:
            self._written = now
            self._line(f"{progress.stage}: {_amount(progress)}, {now - self._start:.0f} s")

    def close(self) -> None:
        pass

    def _line(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _start(progress: Progress) -> _Bar | _Lines:
    widget = _widget_class()
    if widget is not None:
        return _Bar(progress, widget, columns=None)
    if sys.stderr is not None and sys.stderr.isatty():
        from tqdm.std import tqdm

        # There is room left for a ^C, which would make the bar's line wrap.
        return _Bar(progress, _with_own_lock(tqdm), min(100, shutil.get_terminal_size().columns - 4))
    return _Lines(progress)


def _amount(progress: Progress) -> str:
    scale, unit = (1e6, "MB") if progress.unit == "B" else (1, progress.unit)
    total = "" if progress.total is None else f" of {progress.total / scale:.0f}"
    return f"{progress.done / scale:.0f}{total} {unit}"


@cache
def _widget_class() -> Any:
    from tqdm.std import TqdmWarning, tqdm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # without ipywidgets, a kernel gets plain lines
        from tqdm.autonotebook import tqdm as chosen
    return None if chosen is tqdm else _with_own_lock(chosen)


def _with_own_lock(bar_class: Any) -> Any:
    """Return the class of bar with a lock of its own.

    The default lock would fix the start method of the user's multiprocessing, and where that is not fork, start a
    process that complains on the terminal if this one ends in a hurry.
    """
    own = type("ProgressBar", (bar_class,), {})
    own.set_lock(threading.RLock())  # type: ignore[attr-defined]
    return own
