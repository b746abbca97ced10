"""A dashboard that moves: a thread of its own looks at the engine and shows it, while cells run and while none does."""

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep
from typing import Protocol

from rekindle.concurrency.threads import ending
from rekindle.notebook.board import Board
from rekindle.notebook.front_end import context_of_threads

PERIOD = 1 / 3
"""Seconds between two looks."""
GRACE = 2.0
"""Seconds without a view after which its output is taken for closed: one that moves is closed and opened again."""

CLOSING = 1.0
"""Seconds that a front end has at the end to say that it shows something else now."""
LOOKED_SECONDS = 0.02
"""How often to see whether it has."""


class Screen(Protocol):
    """Where it is shown: a `Panel`.

    Attributes:
        seen: whether a front end has ever said that it shows it.
    """

    seen: bool

    @property
    def viewed(self) -> bool:
        """Whether a front end shows it now, as far as has been heard."""

    @property
    def closed(self) -> bool:
        """Whether somebody has closed it."""

    def show(self, board: Board) -> None:
        """Show this snapshot."""

    def close(self) -> None:
        """Take it away."""


class Live:
    """Follows an engine until it has ended, until the output is closed, or until it is told to stop.

    Args:
        look: takes a snapshot.
        screen: shows it.
        leave: called at the end, before the screen is closed; puts something else in its place.
        clock: in seconds.
    """

    def __init__(
        self,
        look: Callable[[], Board],
        screen: Screen,
        leave: Callable[[], None],
        clock: Callable[[], float] = perf_counter,
    ):
        self._look, self._screen, self._leave, self._clock = look, screen, leave, clock
        self._unseen_since: float | None = None
        self._told = threading.Event()
        run = partial(context_of_threads().run, self._run)
        self._thread = threading.Thread(target=run, name="rekindle-dashboard", daemon=True)

    def start(self) -> None:
        """Begin; the screen has been shown the first snapshot."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for that. Any thread may call this, any number of times."""
        self._told.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def update(self) -> bool:
        """Look once and show it; whether to go on."""
        board = self._look()
        self._screen.show(board)
        return not (board.facts.ended or self._screen.closed or self._is_out_of_sight())

    def _is_out_of_sight(self) -> bool:
        if self._screen.viewed or not self._screen.seen:
            self._unseen_since = None
            return False
        now = self._clock()
        if self._unseen_since is None:
            self._unseen_since = now
        return now - self._unseen_since >= GRACE

    def _run(self) -> None:
        try:
            while not self._told.wait(PERIOD) and self.update():
                pass
            self._leave()
            self._let_go_of_views()
            self._screen.close()
        except Exception:
            if not ending():  # a kernel that shuts down has no sockets any more
                raise

    def _let_go_of_views(self) -> None:
        """A front end gives up a widget's subshell with it, and ipykernel says in a cell what then comes for that."""
        last = self._clock() + CLOSING
        while self._screen.viewed and self._clock() < last:
            sleep(LOOKED_SECONDS)
