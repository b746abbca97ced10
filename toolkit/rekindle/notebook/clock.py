"""A thread that keeps a progress bar going between its reports, which may be many seconds apart."""

import threading
from collections.abc import Callable
from functools import partial

from rekindle.notebook.front_end import context_of_threads

SECONDS = 1.0
"""The time between two ticks."""


class Clock:
    """A clock that calls a function every second, on a thread of its own, until it is stopped."""

    def __init__(self, tick: Callable[[], None]):
        self._tick = tick
        self._over = threading.Event()
        run = partial(context_of_threads().run, self._run)
        self._thread = threading.Thread(target=run, name="rekindle-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a tick that has begun."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SECONDS):
            self._tick()
