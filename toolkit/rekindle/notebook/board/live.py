"""The thread that keeps a dashboard up to date, while cells run and while none does."""

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep

from rekindle.core.concurrency.threads import ending
from rekindle.notebook.board.board import Board
from rekindle.notebook.board.panel import Panel
from rekindle.notebook.front_end import context_of_threads

PERIOD = 1 / 3
"""Seconds between two snapshots."""
GRACE = 2.0
"""Seconds without a view after which the output counts as closed; one that is moved is closed and opened again."""
CLOSING = 1.0
"""Seconds that a front end has at the end to say that it no longer shows the widgets."""
LOOKED_SECONDS = 0.02
"""How often to look whether it has said so."""


class Live:
    """A follower of an engine, until that has ended, until the output is closed, or until it is told to stop.

    Args:
        look: takes a snapshot, which the panel shows.
        leave: called at the end, before the panel is closed; takes its buttons away.
    """

    def __init__(
        self,
        look: Callable[[], Board],
        panel: Panel,
        leave: Callable[[], None],
        clock: Callable[[], float] = perf_counter,
    ):
        self._look, self._panel, self._leave, self._clock = look, panel, leave, clock
        self._unseen_since: float | None = None
        self._told = threading.Event()
        run = partial(context_of_threads().run, self._run)
        self._thread = threading.Thread(target=run, name="rekindle-dashboard", daemon=True)

    def start(self) -> None:
        """Begin, after the panel was shown the first snapshot."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until the thread has ended. Any thread may call this, any number of times."""
        self._told.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def update(self) -> bool:
        """Show one snapshot, and tell whether to go on."""
        board = self._look()
        self._panel.show(board)
        return not (board.facts.ended or self._panel.closed or self._is_out_of_sight())

    def _is_out_of_sight(self) -> bool:
        if self._panel.viewed or not self._panel.seen:
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
            self._panel.close()
        except Exception:
            if not ending():  # a kernel that shuts down has no sockets any more
                raise

    def _let_go_of_views(self) -> None:
        """Wait a moment until no front end shows the widgets.

        A front end gives up a widget's subshell with the widget, and ipykernel complains in a cell about messages that
        come for the subshell after that.
        """
        last = self._clock() + CLOSING
        while self._panel.viewed and self._clock() < last:
            sleep(LOOKED_SECONDS)
