"""Progress bar of a call whose request waits for a token, or for the compilation of a program."""

import threading
from typing import Any, Final

from rekindle.client.batches.drawing import Report
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.notebook import front_end
from rekindle.notebook.progress.bars import ProgressBars

DELAY_SECONDS = 1.0
"""The maximum wait for a token without a progress bar."""
POLL_SECONDS = 0.25
"""The interval between two looks at the progress."""
_turn: Final = threading.Lock()
"""Held by the wait with the bar: of several requests awaited at once, one is drawn."""


def wait_for_more(pieces: Feed[Any], count: int, report: Report) -> Waits[None]:
    """Wait until a feed has more than `count` items or is closed, and draw a bar after the first second of the wait.

    The bar has the awaited compilation, or else the number of tokens.
    """
    __tracebackhide__ = True  # hidden in tracebacks of cells
    yield Wait(pieces, count, DELAY_SECONDS)
    if len(pieces.items) > count or pieces.closed:
        return
    has_turn, stage = _turn.acquire(blocking=False), ""
    with ProgressBars(enabled=has_turn) as bars:
        try:
            while len(pieces.items) <= count and not pieces.closed:
                progress = report() or _generating(len(pieces.items))
                if progress is None or progress.stage != stage:
                    bars.drop()
                if progress is not None:
                    bars.show(progress)
                    stage = progress.stage
                yield Wait(pieces, count, POLL_SECONDS)
        finally:
            bars.drop()
            if has_turn:
                _turn.release()


def _generating(tokens: int) -> Progress | None:
    """Return the progress of a request for a reader at a screen; a log gets no line for each slow request."""
    if not front_end.has_reader():
        return None
    return Progress("generating", tokens, None, "token" if tokens == 1 else "tokens")
