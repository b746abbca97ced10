"""Progress of a call that waits for a token, for the compilation of a program, or for a look into the model."""

import threading
from collections.abc import Callable
from typing import Any, Final

from rekindle.client.batches.drawing import Report
from rekindle.core.concurrency.feed import TO_THE_END, Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits
from rekindle.notebook import front_end
from rekindle.notebook.progress.bars import ProgressBars

DELAY_SECONDS = 2.0
"""The longest wait without a sign."""
POLL_SECONDS = 0.25
"""The interval between two looks at the progress."""
_turn: Final = threading.Lock()
"""Held by the wait with the bar: of several requests awaited at once, one is drawn."""


def wait_for_more(pieces: Feed[Any], count: int, report: Report) -> Waits[None]:
    """Wait until a feed has more than `count` items or is closed; after two seconds, draw the progress.

    A bar has the awaited compilation, or else the number of tokens. A log has a line for an awaited compilation.
    """
    __tracebackhide__ = True  # hidden in tracebacks of cells
    yield from _draw_wait(pieces, count, lambda: report() or _generating(len(pieces.items)))


def wait_for_look(answers: Feed[Any], report: Report) -> Waits[None]:
    """Wait until the feed of a program's outputs is closed; after two seconds, draw the progress.

    A bar, or a line in a log, has the awaited compilation, or else that the model is being looked into.
    """
    __tracebackhide__ = True
    yield from _draw_wait(answers, TO_THE_END, lambda: report() or Progress("looking into the model", 0, 1, ""))


def _draw_wait(feed: Feed[Any], count: int, now: Callable[[], Progress | None]) -> Waits[None]:
    """Wait for a feed, and draw the progress of a long wait; a log has a line at the start of each of its stages."""
    __tracebackhide__ = True
    yield Wait(feed, count, DELAY_SECONDS)
    if feed.has_more(count):
        return
    has_turn, stage = _turn.acquire(blocking=False), ""
    with ProgressBars(enabled=has_turn, late=True) as bars:
        try:
            while not feed.has_more(count):
                progress = now()
                if progress is None or progress.stage != stage:
                    bars.drop()
                if progress is not None:
                    bars.show(progress)
                    stage = progress.stage
                yield Wait(feed, count, POLL_SECONDS)
        finally:
            bars.drop()
            if has_turn:
                _turn.release()


def _generating(tokens: int) -> Progress | None:
    """Return the progress of a request for a reader at a screen; a log gets no line for each slow request."""
    if not front_end.has_reader():
        return None
    return Progress("generating", tokens, None, "token" if tokens == 1 else "tokens")
