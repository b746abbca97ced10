"""The compiled programs of a model in a bounded LRU: found, loaded or compiled, ahead of their first use or at it."""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import jax

from rekindle.concurrency.feed import Feed
from rekindle.concurrency.progress import Progress, Report
from rekindle.concurrency.threads import compiling, soon
from rekindle.device.programs.lowering import Key, Program, Programs, program_name
from rekindle.device.programs.shelf import ProgramShelf
from rekindle.device.programs.workers import Workers
from rekindle.errors import SessionClosed
from rekindle.store.validity import Difference

TOLD = 4
"""Differences of arguments that a warning tells of."""


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
        self._ready: OrderedDict[Key, Program] = OrderedDict()
        self._coming: dict[Key, Future[Program]] = {}
        self._planned: set[Key] = set()
        self._workers = Workers(self._make, self.stop)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ready)

    def find(self, key: Key) -> Program | None:
        """A program if it is ready. The caller's reference keeps it alive whatever is given up."""
        self._workers.called()
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
            return self._ready.get(key)

    def prepare(self, keys: Iterable[Key], *, patient: bool = False) -> list[Future[Program]]:
        """Begin to make these programs, in their order, and say when each is ready.

        Args:
            keys: of the programs.
            patient: each begins only when no program was called for a moment, or all the time for seconds.
        """
        if patient:
            self._workers.called()
        with self._lock:
            keys = list(keys)
            self._planned.update(keys)
            return [self._ask(key, lambda key: self._workers.in_turn(key, patient=patient)) for key in keys]

    def obtain(self, key: Key) -> Future[Program]:
        """A program as soon as can be."""
        with self._lock:
            missed = key in self._planned and key not in self._ready and key not in self._coming
            if key in self._coming:
                self._workers.hurry(key)
            future = self._ask(key, self._workers.now)
        if missed:
            self._warn(key, f"it was given up for others: max_executables keeps {self._capacity}")
        return future

    def coming(self, keys: Iterable[Key]) -> list[Future[Program]]:
        """Those of the programs that are asked for and not ready."""
        with self._lock:
            return [self._coming[key] for key in keys if key in self._coming]

    def compile_for(self, key: Key, arguments: Sequence[Any]) -> Program:
        """Compile a program for arguments other than it was made for, which takes seconds, and warn of it."""
        differences = list(_differences(self._programs.arguments(key), arguments))
        more = f"; and {len(differences) - TOLD} more" if len(differences) > TOLD else ""
        self._warn(
            key, f"it was called with other arguments than it was made for: {'; '.join(differences[:TOLD])}{more}"
        )
        with compiling:
            program = self._programs.lowered(key, arguments).compile()
        with self._lock:
            self.compilations += 1
            self._keep(key, program)
        return program

    def idle(self) -> Future[None]:
        """Done once nothing is being made or saved."""
        return self._workers.idle()

    def stop(self) -> None:
        """Make nothing more; who waits is told."""
        with self._lock:
            waiting = [self._coming.pop(key) for key in self._workers.stop()]
            self._capacity = 0
        for future in waiting:
            future.set_exception(SessionClosed("the session was closed before the program was made"))

    def _ask(self, key: Key, begin: Callable[[Key], None]) -> Future[Program]:
        if key in self._ready:
            future: Future[Program] = Future()
            future.set_result(self._ready[key])
            return future
        if key not in self._coming:
            self._coming[key] = Future()
            begin(key)
        return self._coming[key]

    def _make(self, key: Key) -> None:
        try:
            program = self._shelf.load(key) if self._shelf is not None else None
            loaded = program is not None
            if program is None:
                if self._shelf is not None:
                    self.misses[key] = self._shelf.explain(key)
                with compiling:
                    program = self._programs.lowered(key).compile()
            serialized = self._shelf.serialize(program) if self._shelf is not None and not loaded else None
        except BaseException as error:
            with self._lock:
                future = self._coming.pop(key)
                self._planned.discard(key)  # it was not given up for others: its own error says why it is not there
            future.set_exception(error)
            return
        with self._lock:
            self.loads += loaded
            self.compilations += not loaded
            self._keep(key, program)
            future = self._coming.pop(key)
        future.set_result(program)
        if self._shelf is not None and serialized is not None:
            try:
                self._shelf.save(key, serialized)
            except Exception as error:  # it is made: that it cannot be stored stops nobody
                warnings.warn(f"the program {program_name(key)!r} is not stored: {error}", RuntimeWarning, stacklevel=2)

    def _keep(self, key: Key, program: Program) -> None:
        self._ready[key] = program
        while len(self._ready) > self._capacity:
            self._ready.popitem(last=False)

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


def wait_for(programs: Sequence[Future[Any]], report: Report) -> None:
    """Wait until all are ready; the error of one that failed is raised at once."""
    for done, program in enumerate(programs):
        report(Progress("preparing programs", done, len(programs), "programs"))
        program.result()
    report(Progress("preparing programs", len(programs), len(programs), "programs"))


def followed(programs: Sequence[Future[Any]], stored: "Future[None]") -> Feed[Progress]:
    """The same without waiting: a feed that is closed when all are ready and `stored` is done, or have failed."""
    feed: Feed[Progress] = Feed()

    def follow() -> None:
        try:
            wait_for(programs, feed.put)
        except Exception:
            wait(programs)
        wait([stored])
        feed.close()

    soon(follow, "preparing")
    return feed


def raise_first(programs: Sequence[Future[Any]]) -> None:
    """Raise the error of one that failed, if there is one; all are over."""
    for program in programs:
        program.result()


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
