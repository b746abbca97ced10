"""The compiled programs of a model in a bounded LRU: found, loaded or compiled, ahead of their first use or at it."""

import atexit
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from time import monotonic
from typing import Any

import jax

from rekindle.errors import SessionClosed
from rekindle.program_key import Difference
from rekindle.program_shelf import ProgramShelf
from rekindle.programs import Key, Program, Programs, program_name

WORKERS = 2
"""Lowering and loading hold the interpreter about half of the time."""

QUIET_SECONDS, PATIENCE_SECONDS = 0.3, 5.0
"""How long no program is called before the next is made in the background, and how long that is waited for."""
EXIT_SECONDS = 10.0
"""How long a process that ends waits for a program that is being made."""


class Executables:
    """Keeps programs, and makes those that are asked for on worker threads; safe to use from several threads.

    Args:
        programs: how each is lowered.
        capacity: programs kept, the least recently used given up first.
        shelf: where they are loaded from and saved; None for nowhere.

    Attributes:
        weights: the model's arrays, the first argument of every step.
        compilations: programs compiled so far.
        loads: programs loaded from the store so far.
        unexpected: programs compiled that `prepare` should have had ready.
        misses: why programs were not loaded: the parts in which the key of each differs from the stored one most like
            it, or None where none of its name is stored.
    """

    def __init__(self, programs: Programs, capacity: int, shelf: ProgramShelf | None = None):
        self.weights: list[jax.Array] = []
        self.compilations = self.loads = self.unexpected = 0
        self.misses: dict[Key, dict[str, Difference] | None] = {}
        self._programs = programs
        self._capacity = capacity
        self._shelf = shelf
        self._held: OrderedDict[Key, Program] = OrderedDict()
        self._coming: dict[Key, Future[Program]] = {}
        self._queue: deque[Key] = deque()
        self._planned: set[Key] = set()
        self._patient: set[Key] = set()
        self._called = monotonic()
        self._stopped = threading.Event()
        self._background = self._threads = 0
        self._idle: Future[None] = Future()
        self._lock = threading.Lock()
        atexit.register(_end, weakref.ref(self))

    def __len__(self) -> int:
        return len(self._held)

    def find(self, key: Key) -> Program | None:
        """A program if it is ready. The caller's reference keeps it alive whatever is given up."""
        with self._lock:
            self._called = monotonic()
            if key in self._held:
                self._held.move_to_end(key)
            return self._held.get(key)

    def prepare(self, keys: Iterable[Key], *, patient: bool = False) -> list[Future[Program]]:
        """Begin to make these programs, in their order, and say when each is ready.

        Args:
            keys: of the programs.
            patient: each begins only when no program was called for a moment, or all the time for seconds.
        """
        with self._lock:
            keys = list(keys)
            self._planned.update(keys)
            if patient:
                self._patient.update(keys)
                self._called = monotonic()
            return [self._ask(key, urgent=False) for key in keys]

    def obtain(self, key: Key) -> Future[Program]:
        """A program as soon as can be."""
        with self._lock:
            missed = key in self._planned and key not in self._held and key not in self._coming
            future = self._ask(key, urgent=True)
        if missed:
            self._warn(key, f"it was given up for others: max_executables keeps {self._capacity}")
        return future

    def coming(self, keys: Iterable[Key]) -> list[Future[Program]]:
        """Those of the programs that are asked for and not ready."""
        with self._lock:
            return [self._coming[key] for key in keys if key in self._coming]

    def compile_for(self, key: Key, arguments: Sequence[Any]) -> Program:
        """Compile a program for arguments other than it was made for, which takes seconds, and warn of it."""
        differences = "; ".join(_differences(self._programs.arguments(key), arguments))
        self._warn(key, f"it was called with other arguments than it was made for: {differences}")
        program = self._programs.lowered(key, arguments).compile()
        with self._lock:
            self.compilations += 1
            self._keep(key, program)
        return program

    def idle(self) -> Future[None]:
        """Done once nothing is being made or saved."""
        with self._lock:
            if not self._threads and not self._idle.done():
                self._idle.set_result(None)
            return self._idle

    def stop(self) -> None:
        """Make nothing more; who waits is told."""
        with self._lock:
            waiting = [self._coming.pop(key) for key in self._queue]
            self._queue.clear()
            self._capacity = 0
            self._stopped.set()
        for future in waiting:
            future.set_exception(SessionClosed("the session was closed before the program was made"))

    def _ask(self, key: Key, *, urgent: bool) -> Future[Program]:
        if key in self._held:
            future: Future[Program] = Future()
            future.set_result(self._held[key])
            return future
        new = key not in self._coming
        if new:
            self._coming[key] = Future()
        if urgent and (new or key in self._queue):
            if not new:
                self._queue.remove(key)
            self._start(partial(self._make, key))
        elif new:
            self._queue.append(key)
            if self._background < WORKERS:
                self._background += 1
                self._start(self._work)
        return self._coming[key]

    def _start(self, work: Callable[[], None]) -> None:
        self._threads += 1
        if self._idle.done():
            self._idle = Future()
        threading.Thread(target=self._run, args=(work,), name="rekindle-programs", daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        work()
        with self._lock:
            self._threads -= 1
            if not self._threads:
                self._idle.set_result(None)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._background -= 1
                    return
                patient = self._queue[0] in self._patient
            if patient:
                self._wait_for_quiet()
            with self._lock:
                key = self._queue.popleft() if self._queue else None
            if key is not None:
                self._make(key)

    def _wait_for_quiet(self) -> None:
        """The compiler uses all cores, and so does a tick."""
        latest = monotonic() + PATIENCE_SECONDS
        while (left := min(latest, self._called + QUIET_SECONDS) - monotonic()) > 0:
            if self._stopped.wait(left):
                return

    def _make(self, key: Key) -> None:
        try:
            program = self._shelf.load(key) if self._shelf is not None else None
            loaded = program is not None
            if program is None:
                if self._shelf is not None:
                    self.misses[key] = self._shelf.explain(key)
                program = self._programs.lowered(key).compile()
        except BaseException as error:
            with self._lock:
                future = self._coming.pop(key)
            future.set_exception(error)
            return
        with self._lock:
            self.loads += loaded
            self.compilations += not loaded
            self._keep(key, program)
            future = self._coming.pop(key)
        future.set_result(program)
        if self._shelf is not None and not loaded:
            try:
                self._shelf.save(key, program)
            except Exception as error:  # it is made: that it cannot be stored stops nobody
                warnings.warn(f"the program {program_name(key)!r} is not stored: {error}", RuntimeWarning, stacklevel=2)

    def _keep(self, key: Key, program: Program) -> None:
        self._held[key] = program
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)

    def _warn(self, key: Key, reason: str) -> None:
        with self._lock:
            self.unexpected += 1
            again = self.unexpected > 1
        if not again:
            warnings.warn(
                f"the program {program_name(key)!r} has to be compiled while requests wait: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )


def _end(reference: "weakref.ref[Executables]") -> None:
    """A thread that comes back from the compiler into an interpreter that has ended would abort the process."""
    executables = reference()
    if executables is not None:
        executables.stop()
        wait([executables.idle()], timeout=EXIT_SECONDS)


def _differences(expected: dict[str, Any], got: Sequence[Any]) -> Iterator[str]:
    """Which leaf of which argument has another shape, dtype or sharding."""
    for (name, shapes), argument in zip(expected.items(), got, strict=True):
        if str(jax.tree.structure(shapes)) != str(jax.tree.structure(argument)):
            yield f"{name} has another structure"
            continue
        for (path, shape), leaf in zip(
            jax.tree_util.tree_leaves_with_path(shapes), jax.tree.leaves(argument), strict=True
        ):
            for quality in ("shape", "dtype", "sharding"):
                before, now = getattr(shape, quality, None), getattr(leaf, quality, None)
                if before is not None and now is not None and before != now:
                    yield f"{quality} of {name}{jax.tree_util.keystr(path)} is {now} instead of {before}"
