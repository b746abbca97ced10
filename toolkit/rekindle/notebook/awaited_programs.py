"""The bar of a call whose request waits for a program that is still being made."""

from typing import Any

from rekindle.client.drawing import Report
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.notebook.progress_bars import ProgressBars

DELAY_SECONDS = 1.0
"""How long no token comes before a call draws why."""
LOOKED_AT_SECONDS = 0.25


def grown(pieces: Feed[Any], seen: int, report: Report) -> Waits[None]:
    """Wait until a feed has more than `seen` items or is closed; draw the program that the engine waits for."""
    __tracebackhide__ = True  # a cell shows errors without such frames
    yield Wait(pieces, seen, DELAY_SECONDS)
    stage = ""
    with ProgressBars(enabled=True) as bars:
        try:
            while len(pieces.items) <= seen and not pieces.closed:
                progress = report()
                if progress is None or progress.stage != stage:
                    bars.drop()
                if progress is not None:
                    bars.show(progress)
                    stage = progress.stage
                yield Wait(pieces, seen, LOOKED_AT_SECONDS)
        finally:
            bars.drop()
