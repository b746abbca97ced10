"""How the programs of a model come about: loaded from the store, or compiled and then saved."""

import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, TypeVar

import jax

from rekindle.core.concurrency.threads import compiling
from rekindle.core.concurrency.warning import warn
from rekindle.core.device.programs.lowering import Key, Program, Programs, program_name
from rekindle.core.device.programs.store import ProgramStore, Serialized
from rekindle.core.errors import UnsafeStorage
from rekindle.core.store.validity import Difference

T = TypeVar("T")
TOLD = 4
"""The most differences of arguments that a warning names."""


class Making:
    """Makes single programs of a model, and counts how; safe to use from several threads, none of them an event loop's.

    Args:
        programs: how each program is lowered.
        store: where programs are loaded from and saved; None for nowhere.

    Attributes:
        compilations: programs compiled so far.
        loads: programs loaded from the store so far.
        unexpected: programs compiled though they had been ready, or for other arguments than they were made for.
        misses: why programs were not loaded: the parts in which the key of each differs from the stored one most like
            it, or None if none of its name is stored.
    """

    def __init__(self, programs: Programs, store: ProgramStore | None):
        self.compilations = self.loads = self.unexpected = 0
        self.misses: dict[Key, dict[str, Difference] | None] = {}
        self._programs = programs
        self._store = store
        self._lock = threading.Lock()

    def is_stored(self, key: Key) -> bool:
        """Return whether a program is in the store, where it may still prove to be damaged."""
        return bool(self._stored(lambda store: not store.missing([key])))

    def load(self, key: Key) -> Program | None:
        """Load a program from the store; return None if it is not there."""
        program = self._stored(lambda store: store.load(key))
        if program is not None:
            with self._lock:
                self.loads += 1
        return program

    def compile(self, key: Key) -> tuple[Program, Serialized | None]:
        """Compile a program, and serialize it where it is to be stored, before anybody can call it."""
        if self._store is not None:
            self.misses[key] = self._stored(lambda store: store.explain(key))
        began = monotonic()
        with compiling:
            program = self._programs.compiled(key)
        seconds = monotonic() - began
        serialized = self._stored(lambda store: store.serialize(program, seconds))
        with self._lock:
            self.compilations += 1
        return program, serialized

    def compile_for(self, key: Key, arguments: Sequence[Any]) -> Program:
        """Compile a program for arguments other than it was made for, which takes seconds, and warn of it.

        Raises:
            RuntimeError: they lie on other devices, for which nothing is ever compiled.
        """
        self._programs.check_here(key, arguments)
        differences = list(_differences(self._programs.arguments(key), arguments))
        more = f"; and {len(differences) - TOLD} more" if len(differences) > TOLD else ""
        self.tell(
            key, f"it was called with other arguments than it was made for: {'; '.join(differences[:TOLD])}{more}"
        )
        with compiling:
            program = self._programs.compiled(key, arguments)
        with self._lock:
            self.compilations += 1
        return program

    def save(self, key: Key, serialized: Serialized | None) -> None:
        """Store a program that was compiled; if it cannot be stored, warn. None is not stored."""
        if serialized is not None:
            try:
                self._stored(lambda store: store.save(key, serialized))
            except Exception as error:  # it is made: that it cannot be stored stops nobody
                warn(f"the program {program_name(key)!r} is not stored: {error}")

    def drop(self, key: Key, error: Exception) -> None:
        """Drop a program from the store that was loaded and cannot be run, and warn."""
        self._stored(lambda store: store.drop(key, error))

    def tell(self, key: Key, reason: str) -> None:
        """Warn of a compilation that nobody planned. Its number tells it from others, or Python would show one."""
        with self._lock:
            self.unexpected += 1
            number = self.unexpected
        warn(f"unexpected compilation {number}: requests wait for the program {program_name(key)!r}: {reason}")

    def _stored(self, use: Callable[[ProgramStore], T]) -> T | None:
        """Return what `use` makes of the store; None without one. One that has become unsafe is used no more."""
        store = self._store
        if store is None:
            return None
        try:
            return use(store)
        except UnsafeStorage as error:
            with self._lock:
                was_used, self._store = self._store is not None, None
            if was_used:
                warn(f"compiled programs are neither loaded nor saved from now on: {error}")
            return None


def _differences(expected: dict[str, Any], got: Sequence[Any]) -> Iterator[str]:
    """Yield which leaf of which argument has another shape, dtype or sharding."""
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
