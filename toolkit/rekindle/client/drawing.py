"""The drawing of requests while they are waited for, which `rekindle.notebook.showing` does in a notebook."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Wait, Waits

if TYPE_CHECKING:
    from rekindle.client.batches.run import BatchRun
    from rekindle.client.handle import Handle

Report = Callable[[], Progress | None]
"""Returns which program the engine waits for, and how many are ready; None if it waits for none."""
Watch = Callable[["BatchRun"], Waits[None]]
"""Waits until a batch is over."""


class Drawer(Protocol):
    """Draws the requests of one session."""

    def first_tokens(self, pieces: Feed[Any], seen: int) -> Waits[None]:
        """Wait until a feed has more than `seen` pieces or is closed; draw the program that the engine waits for."""

    def batch(self, longest: int | None) -> Watch:
        """Return the wait for a batch, which draws how far it is; `longest` is its `max_tokens`."""

    def display(self, handle: "Handle") -> None:
        """Draw a request in the output of this cell from now on, and return at once."""


def until_over(run: "BatchRun") -> Waits[None]:
    """Wait until a batch is over, and draw nothing."""
    yield Wait(run.ends)
