"""Worker threads for programs: urgent programs start at once, others queue, patient ones also wait for idle devices."""

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
from rekindle.core.device.jax_settings import overrides
from rekindle.core.device.programs.functions import Key

WORKERS = 2
"""Threads for queued programs; lowering and loading hold the interpreter about half of the time."""

QUIET_SECONDS, PATIENCE_SECONDS = 0.3, 5.0
"""Idle time required before a patient program is made, and the longest wait for it."""
COMPUTED_SECONDS = 0.005
"""Results count as already computed if the wait for them is at most this long."""


class Workers:
    """Worker threads. Each key is passed to `make` once; a thread ends when its work is done.

    Args:
        make: makes the program of a key; called without a lock held, and must not raise.
        end: stops further programs; called if the process exits while a thread works.
    """

    def __init__(self, make: Callable[[Key], None], end: Callable[[], None]):
        self._make, self._end = make, end
        self._queue: deque[tuple[Key, bool]] = deque()
        self._last_call = monotonic()
        self._results: Any = None
        self._stopped = threading.Event()
        self._queue_threads = self._threads = 0
        self._idle: Future[None] = Future()
        self._lock = threading.Lock()

    def note_call(self) -> None:
        """Record a program call, so that patient work waits."""
        self._last_call = monotonic()

    def note_results(self, results: Any) -> None:
        """Record the results of a call, so that patient work waits until they are computed.

        Args:
            results: a pytree of arrays. They are not copied, and may be donated or deleted at any time.
        """
        self._results = results

    def now(self, key: Key) -> None:
        """Make a program at once, on a new thread."""
        with self._lock:
            self._start(partial(self._make, key))

    def hurry(self, key: Key) -> None:
        """Make a queued program at once; do nothing if it is not queued."""
        with self._lock:
            entry = next((each for each in self._queue if each[0] == key), None)
            if entry is not None:
                self._queue.remove(entry)
                self._start(partial(self._make, key))

    def enqueue(self, key: Key, *, patient: bool) -> None:
        """Make a program after the queued ones.

        Args:
            patient: whether to wait for `QUIET_SECONDS` without program calls, for at most `PATIENCE_SECONDS`.
        """
        with self._lock:
            self._queue.append((key, patient))
            if self._queue_threads < WORKERS:
                self._queue_threads += 1
                self._start(self._work)

    def idle(self) -> "Future[None]":
        """Return a future, done once no program is queued or being made."""
        with self._lock:
            if not self._threads and not self._idle.done():
                self._idle.set_result(None)
            return self._idle

    def stop(self) -> list[Key]:
        """Empty the queue and return its keys."""
        with self._lock:
            keys = [key for key, _ in self._queue]
            self._queue.clear()
            self._results = None
            self._stopped.set()
        return keys

    def _start(self, work: Callable[[], None]) -> None:
        self._threads += 1
        if self._idle.done():
            self._idle = Future()
        Work(partial(self._run, work), "programs", self._end)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            with overrides():
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
                    self._queue_threads -= 1
                    return
                _, patient = self._queue[0]
            if patient:
                self._wait_for_quiet()
            with self._lock:
                key = self._queue.popleft()[0] if self._queue else None
            if key is not None:
                self._make(key)

    def _wait_for_quiet(self) -> None:
        """Wait until no program runs: the compiler and a tick each use all cores."""
        latest = monotonic() + PATIENCE_SECONDS
        while True:
            if _wait_for_results(self._results):
                self._last_call = monotonic()
            remaining = min(latest, self._last_call + QUIET_SECONDS) - monotonic()
            if remaining <= 0 or self._stopped.wait(remaining):
                return


def _wait_for_results(results: Any) -> bool:
    """Wait until the arrays of a pytree are computed; return whether this took time. Deleted arrays are skipped.

    `is_ready` is no substitute: it aborts the process if another thread has just deleted the array.
    """
    start = monotonic()
    for array in jax.tree.leaves(results):
        with suppress(RuntimeError):  # raised by jax for a deleted array
            jax.block_until_ready(array)
    return monotonic() - start > COMPUTED_SECONDS
