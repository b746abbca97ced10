"""Thread to update a progress bar between reports, since reports can be many seconds apart."""

import threading
from collections.abc import Callable

from rekindle.notebook import front_end

SECONDS = 1.0
"""The time between two calls."""


class Clock:
    """A thread to call a function every second until `stop`."""

    def __init__(self, function: Callable[[], None]):
        self._function = function
        self._stop_event = threading.Event()
        self._thread = front_end.thread(self._run, "rekindle-progress")
        self._thread.start()

    def stop(self) -> None:
        """Stop the clock, and wait for a running call."""
        self._stop_event.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop_event.wait(SECONDS):
            self._function()
