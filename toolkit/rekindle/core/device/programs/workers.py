"""Worker threads that make programs: urgent ones at once, others in turn, patient ones in a moment of quiet."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import jax

from rekindle.core.concurrency.threads import Work
from rekindle.core.device.jax_settings import own_settings
from rekindle.core.device.programs.lowering import Key

WORKERS = 2
"""The number of threads that work in turn; lowering and loading hold the interpreter about half of the time."""

QUIET_SECONDS, PATIENCE_SECONDS = 0.3, 5.0
"""How long no program must run before a patient one is made, and how long that is waited for at most."""
COMPUTED_SECONDS = 0.005
"""Results that are waited for no longer than this were there already."""


class Workers:
    """Threads that call `make` once for each key, and live as long as there is something to do.

    Args:
        make: makes the program of a key; called without a lock held, and must not raise.
        end: stops the making of programs; called if the process ends meanwhile.
    """

    def __init__(self, make: Callable[[Key], None], end: Callable[[], None]):
        self._make, self._end = make, end
        self._queue: deque[tuple[Key, bool]] = deque()
        self._called = monotonic()
        self._results: Any = None
        self._stopped = threading.Event()
        self._in_turn = self._threads = 0
        self._idle: Future[None] = Future()
        self._lock = threading.Lock()

    def called(self) -> None:
        """Note that a program is being called now, so that patient work waits."""
        self._called = monotonic()

    def runs(self, results: Any) -> None:
        """Note what a call returned, so that patient work waits until it is computed.

        Args:
            results: arrays in a pytree. They are not copied, and may be donated or deleted at any time.
        """
        self._results = results

    def now(self, key: Key) -> None:
        """Make a program at once, on a thread of its own."""
        with self._lock:
            self._start(partial(self._make, key))

    def hurry(self, key: Key) -> None:
        """Make a program that is in line at once, unless it is being made already."""
        with self._lock:
            waiting = next((each for each in self._queue if each[0] == key), None)
            if waiting is not None:
                self._queue.remove(waiting)
                self._start(partial(self._make, key))

    def in_turn(self, key: Key, *, patient: bool) -> None:
        """Make a program after those that are in line.

        Args:
            patient: whether to wait until no program was called for a moment, or until seconds have passed.
        """
        with self._lock:
            self._queue.append((key, patient))
            if self._in_turn < WORKERS:
                self._in_turn += 1
                self._start(self._work)

    def idle(self) -> "Future[None]":
        """Return a future that is done once no program is being made or in line."""
        with self._lock:
            if not self._threads and not self._idle.done():
                self._idle.set_result(None)
            return self._idle

    def stop(self) -> list[Key]:
        """Empty the line, and return what was in it."""
        with self._lock:
            waiting = [key for key, _ in self._queue]
            self._queue.clear()
            self._results = None
            self._stopped.set()
        return waiting

    def _start(self, work: Callable[[], None]) -> None:
        self._threads += 1
        if self._idle.done():
            self._idle = Future()
        Work(partial(self._run, work), "programs", self._end)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            with own_settings():
                work()
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._idle.set_result(None)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._in_turn -= 1
                    return
                _, patient = self._queue[0]
            if patient:
                self._wait_for_quiet()
            with self._lock:
                key = self._queue.popleft()[0] if self._queue else None
            if key is not None:
                self._make(key)

    def _wait_for_quiet(self) -> None:
        """Wait until no program runs: the compiler uses all cores, and so does a tick."""
        latest = monotonic() + PATIENCE_SECONDS
        while True:
            if _waited_for(self._results):
                self._called = monotonic()
            left = min(latest, self._called + QUIET_SECONDS) - monotonic()
            if left <= 0 or self._stopped.wait(left):
                return


def _waited_for(results: Any) -> bool:
    """Wait until arrays in a pytree are computed; return whether that took time. Those that are deleted do not count.

    `is_ready` cannot be asked instead: it ends the process if another thread has just deleted the array.
    """
    began = monotonic()
    for array in jax.tree.leaves(results):
        with suppress(RuntimeError):  # so jax refuses what is deleted
            jax.block_until_ready(array)
    return monotonic() - began > COMPUTED_SECONDS
