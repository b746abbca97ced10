"""Interface for drawing pending requests; `rekindle.notebook.showing` implements it for notebooks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits

if TYPE_CHECKING:
    from rekindle.client.batches.run import BatchRun
    from rekindle.client.handle import Handle

Report = Callable[[], Progress | None]
"""Reports the program awaited by the engine and the number of ready programs; None if the engine is not waiting."""
Watch = Callable[["BatchRun"], Waits[None]]
"""Returns the operation that waits for the end of a batch."""


class Drawer(Protocol):
    """Drawer of one session's requests."""

    def wait(self, pieces: Feed[Any], count: int) -> Waits[None]:
        """Wait until a feed has more than `count` pieces or is closed, and draw a long wait."""

    def batch(self, longest: int | None) -> Watch:
        """Return the function that waits for a batch and draws its progress; `longest` is the batch's `max_tokens`."""

    def note(self, line: str) -> None:
        """Write a line below the current cell, or to stderr."""

    def display(self, handle: "Handle") -> None:
        """Draw a request in the output of the current cell until it ends; return at once."""


def until_over(run: "BatchRun") -> Waits[None]:
    """Wait until a batch has ended, without drawing."""
    yield Wait(run.ends)
