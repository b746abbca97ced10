"""Thread to update a dashboard during and between cells."""

import threading
from collections.abc import Callable
from time import perf_counter, sleep

from rekindle.core.concurrency.threads import ending
from rekindle.notebook import front_end, marimo_cell
from rekindle.notebook.board.board import Board
from rekindle.notebook.board.panel import Panel

PERIOD = 1 / 3
"""The seconds between two snapshots."""
GRACE = 2.0
"""The seconds without a view until an output counts as closed. A moved output is closed and reopened at once."""
CLOSING = 1.0
"""The maximum wait at the end for the front end to close its views, in seconds."""
POLL_SECONDS = 0.02
"""The interval between two looks at the views during this wait, in seconds."""


class Live:
    """A thread to show periodic snapshots until the engine ends, the output is closed, or `stop` is called.

    Args:
        look: a function to take a snapshot.
        panel: the outputs for the snapshots.
        finish: a function to show the final snapshot and to remove the buttons, called before the panel is closed.
        clock: a clock in seconds.
    """

    def __init__(
        self,
        look: Callable[[], Board],
        panel: Panel,
        finish: Callable[[], None],
        clock: Callable[[], float] = perf_counter,
    ):
        self._look, self._panel, self._finish, self._clock = look, panel, finish, clock
        self._hidden_since: float | None = None
        self._stop_event = threading.Event()
        self._thread = front_end.thread(self._run, "rekindle-dashboard")

    def start(self) -> None:
        """Start the thread; the panel already shows the first snapshot."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for its end. Thread-safe; can be called repeatedly."""
        self._stop_event.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def update(self) -> bool:
        """Show one snapshot, and return whether to continue."""
        if marimo_cell.has_run_again():
            return False
        board = self._look()
        self._panel.show(board)
        return not (board.facts.has_ended or self._panel.closed or self._is_out_of_sight())

    def _is_out_of_sight(self) -> bool:
        if self._panel.viewed or not self._panel.was_viewed:
            self._hidden_since = None
            return False
        now = self._clock()
        if self._hidden_since is None:
            self._hidden_since = now
        return now - self._hidden_since >= GRACE

    def _run(self) -> None:
        try:
            while not self._stop_event.wait(PERIOD) and self.update():
                pass
            if marimo_cell.has_run_again():  # marimo has removed the output, and the next run has its own
                return
            self._finish()
            self._wait_for_views()
            self._panel.close()
        except Exception:
            if not ending():  # a kernel at shutdown has no sockets
                raise

    def _wait_for_views(self) -> None:
        """Wait briefly until no front end displays the widgets.

        A front end deletes the subshell of a widget together with the widget. A later message to the subshell would
        make ipykernel print an error in a cell.
        """
        last = self._clock() + CLOSING
        while self._panel.viewed and self._clock() < last:
            sleep(POLL_SECONDS)
