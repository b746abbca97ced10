"""Builder of a model's programs: each is loaded from the store, or compiled and then saved."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar

import jax

from rekindle.core.concurrency.threads import compiling
from rekindle.core.concurrency.warning import warn
from rekindle.core.device.programs.compiler_log import silent
from rekindle.core.device.programs.functions import Key, program_name
from rekindle.core.device.programs.lowering import Program, Programs
from rekindle.core.device.programs.store import ProgramStore, Serialized
from rekindle.core.errors import UnsafeStorage
from rekindle.core.store.validity import Difference

T = TypeVar("T")
MAX_DIFFERENCES = 4
"""Maximum number of argument differences named in one warning."""


class ProgramBuilder:
    """Builder of single programs, with counters of loads and compilations.

    It is thread-safe. Its methods block, so do not call any on an event loop's thread.

    Args:
        programs: the lowering of each program.
        store: the executable store to load from and save to; None for no store.

    Attributes:
        compilations: programs compiled so far.
        loads: programs loaded from the store so far.
        unexpected: programs compiled again after an eviction, or for arguments of other shapes.
        misses: for each program absent from the store, the differences between its key and the most similar stored
            one, or None if no program of its name is stored.
    """

    def __init__(self, programs: Programs, store: ProgramStore | None):
        self.compilations = self.loads = self.unexpected = 0
        self.misses: dict[Key, dict[str, Difference] | None] = {}
        self._programs = programs
        self._store = store
        self._lock = threading.Lock()

    def is_stored(self, key: Key) -> bool:
        """Return True if a program is in the store. The entry may still turn out to be damaged."""
        return bool(self._use_store(lambda store: not store.missing([key])))

    def load(self, key: Key) -> Program | None:
        """Load a program from the store; return None if it is absent."""
        program = self._use_store(lambda store: store.load(key))
        if program is not None:
            with self._lock:
                self.loads += 1
        return program

    def compile(self, key: Key) -> tuple[Program, Serialized | None]:
        """Compile a program and, if there is a store, serialize it before its first call."""
        if self._store is not None:
            self.misses[key] = self._use_store(lambda store: store.explain(key))
        start = monotonic()
        with compiling, silent:
            program = self._programs.compile(key)
        seconds = monotonic() - start
        serialized = self._use_store(lambda store: store.serialize(program, seconds))
        with self._lock:
            self.compilations += 1
        return program, serialized

    def compile_for(self, key: Key, arguments: Sequence[Any]) -> Program:
        """Compile a program for arguments of unexpected shapes, and warn. This takes seconds.

        Raises:
            RuntimeError: the arguments lie on other devices, for which no program is ever compiled.
        """
        self._programs.check_devices(key, arguments)
        differences = list(_differences(self._programs.arguments(key), arguments))
        more = f"; and {len(differences) - MAX_DIFFERENCES} more" if len(differences) > MAX_DIFFERENCES else ""
        self.warn_unexpected(
            key,
            f"it was called with other arguments than it was compiled for: "
            f"{'; '.join(differences[:MAX_DIFFERENCES])}{more}",
        )
        with compiling, silent:
            program = self._programs.compile(key, arguments)
        with self._lock:
            self.compilations += 1
        return program

    def save(self, key: Key, serialized: Serialized | None) -> None:
        """Store a compiled program; warn if this fails. None is ignored."""
        if serialized is not None:
            try:
                self._use_store(lambda store: store.save(key, serialized))
            except Exception as error:  # the program itself works, so requests go on
                warn(f"cannot store the program {program_name(key)!r}: {error}")

    def drop(self, key: Key, error: Exception) -> None:
        """Remove a loaded program from the store because it cannot run, and warn."""
        self._use_store(lambda store: store.drop(key, error))

    def warn_unexpected(self, key: Key, reason: str) -> None:
        """Warn about an unexpected compilation. Its number keeps Python from hiding the warning as a repetition."""
        with self._lock:
            self.unexpected += 1
            number = self.unexpected
        warn(f"unexpected compilation {number}: requests wait for the program {program_name(key)!r}: {reason}")

    def _use_store(self, use: Callable[[ProgramStore], T]) -> T | None:
        """Return `use(store)`, or None without a store. A store is dropped as soon as it becomes unsafe."""
        store = self._store
        if store is None:
            return None
        try:
            return use(store)
        except UnsafeStorage as error:
            with self._lock:
                was_used, self._store = self._store is not None, None
            if was_used:
                warn(f"compiled programs are no longer loaded or saved: {error}")
            return None


def _differences(expected: Mapping[str, Any], arguments: Sequence[Any]) -> Iterator[str]:
    """Yield a description of each argument leaf with an unexpected shape, dtype or sharding."""
    for (name, shapes), argument in zip(expected.items(), arguments, strict=True):
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
