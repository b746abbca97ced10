"""Progress bar of a call whose request waits for the compilation of a program."""

from typing import Any

from rekindle.client.drawing import Report
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.notebook.progress_bars import ProgressBars

DELAY_SECONDS = 1.0
"""The maximum wait for a token without a progress bar."""
POLL_SECONDS = 0.25
"""The interval between two looks at the progress."""


def wait_for_more(pieces: Feed[Any], count: int, report: Report) -> Waits[None]:
    """Wait until a feed has more than `count` items or is closed, and meanwhile draw the awaited compilations."""
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
