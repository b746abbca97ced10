"""A progress bar in the output of a notebook's cell.

It is HTML and no widget, so a saved or exported notebook shows it as it ended, without the kernel that drew it.
"""

import threading
from time import monotonic

from rekindle.core import markup
from rekindle.core.concurrency.progress import Progress
from rekindle.notebook import front_end
from rekindle.notebook.clock import Clock

REDRAWN_SECONDS = 0.2
"""The least time between two drawings of reports, but for the last one."""


class CellBar:
    """A bar in an output of the cell that runs. It is drawn at once, and every second after that."""

    def __init__(self, progress: Progress):
        self._latest = progress
        self._start = monotonic()
        self._drawn = self._start - REDRAWN_SECONDS
        self._lock = threading.Lock()
        self._output = front_end.CellOutput()
        self._draw()
        self._clock = Clock(self._draw)

    def show(self, progress: Progress) -> None:
        """Draw a report, unless the bar was drawn just now."""
        self._latest = progress
        if progress.done == progress.total or monotonic() >= self._drawn + REDRAWN_SECONDS:
            self._draw()

    def close(self) -> None:
        """Draw the bar as it has ended. If nothing was done until another stage took its place, nothing stays."""
        if not self._latest.done:
            self.drop()
        else:
            self._clock.stop()
            self._draw()

    def drop(self) -> None:
        """Take the bar away."""
        self._clock.stop()
        self._output.draw(front_end.EMPTY)

    def _draw(self) -> None:
        with self._lock:
            now = monotonic()
            self._drawn = now
            self._output.draw(bar_bundle(self._latest, now - self._start))


def bar_bundle(progress: Progress, seconds: float) -> markup.Bundle:
    """Return a bar after so many seconds, as text and as HTML."""
    known = [progress.amount, f"{seconds:.0f} s"]
    if progress.unit == "B" and seconds >= 1 and progress.done:
        known.insert(1, f"{markup.size_text(round(progress.done / seconds))}/s")
    if left := progress.remaining(seconds):
        known.append(left)
    said = ", ".join(known)
    share = progress.done / progress.total if progress.total else 0.0
    filled = f'<span style="display:block;height:100%;width:{100 * share:.1f}%;background:rgba(60,160,90,0.75)"></span>'
    style = "display:flex;flex-wrap:wrap;align-items:center;gap:0 0.8em;max-width:60em;line-height:1.5"
    rail = "flex:1 1 8em;height:0.6em;border-radius:3px;overflow:hidden;background:rgba(128,128,128,0.25)"
    now = f' aria-valuenow="{100 * share:.0f}"' if progress.total else ""  # without a number, it is still going on
    role = (
        f'role="progressbar" aria-label="{markup.visible(progress.stage)}" aria-valuemin="0" aria-valuemax="100"{now}'
    )
    html = (
        f'<div style="{style}"><span>{markup.visible(progress.stage)}</span><span {role} style="{rail}">{filled}</span>'
        f'<span style="font-variant-numeric:tabular-nums;opacity:0.75">{markup.visible(said)}</span></div>'
    )
    return markup.bundle(f"{progress.stage}: {said}", html)
