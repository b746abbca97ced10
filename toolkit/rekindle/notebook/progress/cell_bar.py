"""Progress bar in the output of a notebook cell.

The bar is HTML instead of a widget, so a saved or exported notebook shows its last state without the kernel.
"""

import threading
from time import monotonic

from rekindle import markup
from rekindle.core.concurrency.progress import Progress
from rekindle.core.words import size_text
from rekindle.notebook import front_end
from rekindle.notebook.progress.clock import Clock

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
