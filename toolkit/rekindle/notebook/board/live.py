"""Thread to update a dashboard during and between cells."""

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep

from rekindle.core.concurrency.threads import ending
from rekindle.notebook.board.board import Board
from rekindle.notebook.board.panel import Panel
from rekindle.notebook.front_end import context_of_threads

PERIOD = 1 / 3
"""The seconds between two snapshots."""
GRACE = 2.0
"""The seconds without a view until an output counts as closed; moving an output closes and reopens it."""
CLOSING = 1.0
"""The maximum wait for the front end to close its views at the end, in seconds."""
POLL_SECONDS = 0.02
"""The interval between two looks at the views during this wait, in seconds."""


class Live:
    """A thread with periodic snapshots of an engine, until its end, until the output is closed, or until `stop`.

    Args:
        look: a function to take a snapshot.
        panel: the outputs for the snapshots.
        leave: a function to remove the buttons, called at the end, before the panel is closed.
        clock: a clock in seconds.
    """

    def __init__(
        self,
        look: Callable[[], Board],
        panel: Panel,
        leave: Callable[[], None],
        clock: Callable[[], float] = perf_counter,
    ):
        self._look, self._panel, self._leave, self._clock = look, panel, leave, clock
        self._hidden_since: float | None = None
        self._stop_event = threading.Event()
        run = partial(context_of_threads().run, self._run)
        self._thread = threading.Thread(target=run, name="rekindle-dashboard", daemon=True)

    def start(self) -> None:
        """Start the thread, after the first snapshot on the panel."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for its end. Thread-safe; can be called repeatedly."""
        self._stop_event.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def update(self) -> bool:
        """Show one snapshot, and return whether to continue."""
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
            self._leave()
            self._wait_for_views()
            self._panel.close()
        except Exception:
            if not ending():  # a kernel at shutdown has no sockets
                raise

    def _wait_for_views(self) -> None:
        """Wait briefly until no front end displays the widgets.

        A front end deletes the subshell of a widget together with the widget. Later messages for the subshell would
        make ipykernel print an error in a cell.
        """
        last = self._clock() + CLOSING
        while self._panel.viewed and self._clock() < last:
            sleep(POLL_SECONDS)
