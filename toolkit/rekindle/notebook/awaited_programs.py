"""Progress bar of a call during the compilation of a program for its request."""

from typing import Any

from rekindle.client.drawing import Report
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.notebook.progress_bars import ProgressBars

DELAY_SECONDS = 1.0
"""The wait for a token before a call shows a progress bar."""
POLL_SECONDS = 0.25
"""The interval between two looks at the progress."""


def wait_for_more(pieces: Feed[Any], count: int, report: Report) -> Waits[None]:
    """Wait until a feed has more than `count` items or is closed, and draw awaited compilations meanwhile."""
    __tracebackhide__ = True  # hidden in tracebacks of cells
    yield Wait(pieces, count, DELAY_SECONDS)
    stage = ""
    with ProgressBars(enabled=True) as bars:
        try:
            while len(pieces.items) <= count and not pieces.closed:
                progress = report()
                if progress is None or progress.stage != stage:
                    bars.drop()
                if progress is not None:
                    bars.show(progress)
                    stage = progress.stage
                yield Wait(pieces, count, POLL_SECONDS)
        finally:
            bars.drop()
