"""Thread to update a progress bar between reports, since reports can be many seconds apart."""

import threading
from collections.abc import Callable
from functools import partial

from rekindle.notebook.front_end import context_of_threads

SECONDS = 1.0
"""The time between two calls."""


class Clock:
    """A thread to call a function every second until `stop`."""

    def __init__(self, function: Callable[[], None]):
        self._function = function
        self._stop_event = threading.Event()
        run = partial(context_of_threads().run, self._run)
        self._thread = threading.Thread(target=run, name="rekindle-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the clock, and wait for a running call."""
        self._stop_event.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop_event.wait(SECONDS):
            self._function()
