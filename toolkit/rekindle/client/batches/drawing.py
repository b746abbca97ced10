"""Interface for drawing pending requests; `rekindle.notebook.showing` implements it for notebooks."""

from collections.abc import Callable
from typing import Any, Protocol

from rekindle.client.batches.run import BatchRun
from rekindle.client.handle import RequestDrawer
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits

Report = Callable[[], Progress | None]
"""Reports the program awaited by the engine and the number of ready programs; None if the engine is not waiting."""
Watch = Callable[[BatchRun], Waits[None]]
"""Returns the wait for the end of a batch."""


class Drawer(RequestDrawer, Protocol):
    """Drawer of one session's requests and batches."""

    def batch(self, longest: int | None) -> Watch:
        """Return the wait for a batch, which draws its progress; `longest` is the `max_tokens` of the batch."""

    def look(self, answers: Feed[Any]) -> Waits[None]:
        """Wait until the feed of a program's outputs is closed, and draw a long wait."""

    def note(self, line: str) -> None:
        """Write a line below the current cell, or to stderr."""


def until_over(run: BatchRun) -> Waits[None]:
    """Wait until a batch has ended, without drawing."""
    yield Wait(run.ends)
