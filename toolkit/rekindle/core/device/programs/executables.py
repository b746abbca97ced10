"""Bounded LRU of a model's compiled programs, loaded or compiled ahead of first use or on demand."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any

import jax
from anyio import to_thread

from rekindle.core import buckets
from rekindle.core.buckets import Bucket
from rekindle.core.device.jax_settings import with_overrides
from rekindle.core.device.memory import is_out_of_memory
from rekindle.core.device.programs.builder import ProgramBuilder
from rekindle.core.device.programs.functions import Key
from rekindle.core.device.programs.lowering import Program, Programs, temporary_bytes
from rekindle.core.device.programs.readiness import raise_first
from rekindle.core.device.programs.store import ProgramStore, Serialized
from rekindle.core.device.programs.workers import Workers
from rekindle.core.errors import SessionClosed

LIGHT_PADDING = 64
"""Number of padding tokens that cost as much on a CPU as loading a program: 0.1 to 0.15 s on two cores."""


class ArgumentsLost(Exception):
    """Loss of donated arguments in the failed call of a damaged stored program. The next call uses a new program."""


class Executables:
    """The programs of a model, each made by a worker thread on demand. Thread-safe.

    Args:
        programs: the lowering of each program.
        capacity: the maximum number of programs in memory; the least recently used is evicted first.
        store: the executable store to load from and save to; None for no store.

    Attributes:
        builder: the builder of each program, with its counters.
        wait_ended: the end of a lane's last wait for a program, by `time.monotonic`; infinity during a wait.
    """

    def __init__(self, programs: Programs, capacity: int, store: ProgramStore | None = None):
        self.builder = ProgramBuilder(programs, store)
        self.wait_ended = -math.inf
        self._waits: list[Key] = []
        self._capacity = capacity
        self._ready: OrderedDict[Key, Program] = OrderedDict()
        self._pending: dict[Key, Future[Program]] = {}
        self._evicted_keys: set[Key] = set()
        self._steps: set[Bucket] = set()  # those prepared in advance; none if each is compiled at its first use
        self._first_calls: dict[Key, bool] = {}  # for each program not called yet: whether it was loaded
        self._workspaces: dict[Key, int | None] = {}  # each query of the compiler takes tens of milliseconds
        self._workers = Workers(self._make, self.stop)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def awaited(self) -> Key | None:
        """The key of a program awaited by a lane, or None. Thread-safe."""
        return next(iter(self._waits), None)

    def workspace(self) -> int | None:
        """Return the temporary bytes of the most demanding ready step while it runs, or None if unknown."""
        with self._lock:
            steps = {key: program for key, program in self._ready.items() if isinstance(key, Bucket)}
        for key in steps.keys() - self._workspaces.keys():
            self._workspaces[key] = temporary_bytes(steps[key])
        return max((size for key in steps if (size := self._workspaces[key]) is not None), default=None)

    async def for_step(self, smallest: Bucket) -> tuple[Bucket, Program]:
        """Return the bucket for a tick, and its program.

        While the program of the smallest fitting bucket is being made, a larger bucket with a ready program is used
        instead, if it adds little padding or if the smallest one must be compiled. Otherwise, wait until the program of
        any of these buckets is ready.
        """
        while self._futures_of([smallest]):
            larger = buckets.larger(self._buckets(), smallest)
            if await to_thread.run_sync(self.builder.is_stored, smallest, abandon_on_cancel=True):
                larger = [bucket for bucket in larger if bucket.size - smallest.size <= LIGHT_PADDING]
            for bucket in (smallest, *larger):
                program = self.find(bucket)
                if program is not None:
                    return bucket, program
            futures = [self.obtain(smallest), *self._futures_of(larger)]
            with self._awaiting(smallest):
                await to_thread.run_sync(_wait_for_one, futures, abandon_on_cancel=True)
        return smallest, await self.ready(smallest)

    async def ready(self, key: Key) -> Program:
        """Return a program, waiting until it is ready."""
        program = self.find(key)
        if program is None:
            with self._awaiting(key):
                program = await to_thread.run_sync(self.obtain(key).result, abandon_on_cancel=True)
        return program

    @contextmanager
    def _awaiting(self, key: Key) -> Iterator[None]:
        with self._lock:
            self._waits.append(key)
            self.wait_ended = math.inf
        try:
            yield
        finally:
            with self._lock:
                self._waits.remove(key)
                if not self._waits:
                    self.wait_ended = monotonic()

    async def call(self, key: Key, program: Program, *arguments: Any) -> Any:
        """Call a program. If its arguments have unexpected shapes, warn and compile it for them, which takes seconds.

        The first call runs in a worker thread, because JAX prepares it in Python, argument by argument.
        """
        try:
            if key in self._first_calls:
                return await to_thread.run_sync(with_overrides, self._first_call, key, program, *arguments)
            return self._call(program, *arguments)
        except (TypeError, ValueError):  # raised by jax for unexpected arguments, before the program runs
            compile_for = partial(with_overrides, self._compile_for, key, arguments)
            with self._awaiting(key):
                program = await to_thread.run_sync(compile_for, abandon_on_cancel=True)
            return program(*arguments)

    def run(self, key: Key, *arguments: Any) -> Any:
        """Call a program once it is ready. This blocks the thread."""
        program = self.find(key) or self.obtain(key).result()
        return (
            self._first_call(key, program, *arguments) if key in self._first_calls else self._call(program, *arguments)
        )

    def _call(self, program: Program, *arguments: Any) -> Any:
        results = program(*arguments)
        self._workers.note_results(results)
        return results

    def _first_call(self, key: Key, program: Program, *arguments: Any) -> Any:
        """Call a program for the first time. If it was loaded and fails, remove it from the store and warn.

        It is then compiled and called again.

        Raises:
            ArgumentsLost: the failed call has consumed the donated arguments.
        """
        if not self._first_calls.pop(key, False):
            return self._call(program, *arguments)
        try:
            return jax.block_until_ready(self._call(program, *arguments))
        except jax.errors.JaxRuntimeError as error:
            if is_out_of_memory(error):  # the program is sound
                raise
            self.builder.drop(key, error)
            with self._awaiting(key):
                program, serialized = self._compile(key)
            with self._lock:
                self._keep(key, program)
            self.builder.save(key, serialized)
            if any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)):
                raise ArgumentsLost("a stored program was damaged, and has been compiled again") from error
            return program(*arguments)

    def is_pending(self, key: Key) -> bool:
        """Return True while a program is being made, or waits for its turn."""
        with self._lock:
            return key in self._pending

    def find(self, key: Key) -> Program | None:
        """Return a program if it is ready, else None. The caller's reference keeps it alive after an eviction."""
        self._workers.note_call()
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
            return self._ready.get(key)

    def prepare(self, keys: Iterable[Key], *, patient: bool = False) -> list[Future[None]]:
        """Start making programs, in the order of their keys.

        Args:
            patient: whether each waits for a moment without program calls, for a few seconds at most.

        Returns:
            For each program, a future that is done when it is ready. It does not keep the program alive.
        """
        if patient:
            self._workers.note_call()
        keys = list(keys)
        self._steps.update(key for key in keys if isinstance(key, Bucket))
        with self._lock:
            programs = [self._future_of(key, lambda key: self._workers.enqueue(key, patient=patient)) for key in keys]
        return [_readiness(program) for program in programs]

    def obtain(self, key: Key) -> Future[Program]:
        """Return the future of a program, to be made as soon as possible if it is not ready."""
        with self._lock:
            if key in self._pending:
                self._workers.hurry(key)
            return self._future_of(key, self._workers.now)

    def idle(self) -> Future[None]:
        """Return a future, done once no program is being made or saved."""
        return self._workers.idle()

    def free(self) -> None:
        """Stop, and release all programs: ready ones now, and pending ones as soon as they are ready.

        On a CPU a program holds about 240 memory mappings, and Linux allows a process 65,530 by default.
        """
        self.stop()
        with self._lock:
            self._ready.clear()

    def stop(self) -> None:
        """Make no more programs, and fail the futures of queued ones."""
        with self._lock:
            futures = [self._pending.pop(key) for key in self._workers.stop()]
            self._capacity = 0
        for future in futures:
            future.set_exception(SessionClosed("the session was closed before the program was ready"))

    def _buckets(self) -> list[Bucket]:
        """Return the buckets whose programs are ready or being made."""
        with self._lock:
            return [key for key in (*self._ready, *self._pending) if isinstance(key, Bucket)]

    def _futures_of(self, keys: Iterable[Key]) -> list[Future[Program]]:
        """Return the futures of the pending programs among these."""
        with self._lock:
            return [self._pending[key] for key in keys if key in self._pending]

    def _future_of(self, key: Key, start: Callable[[Key], None]) -> Future[Program]:
        if key in self._ready:
            future: Future[Program] = Future()
            future.set_result(self._ready[key])
            return future
        if key not in self._pending:
            self._pending[key] = Future()
            start(key)
        return self._pending[key]

    def _make(self, key: Key) -> None:
        """Load or compile a program, resolve its future, and then save it if it was compiled."""
        try:
            program, serialized = self.builder.load(key), None
            loaded = program is not None
            if program is None:
                program, serialized = self._compile(key)
        except BaseException as error:
            with self._lock:
                future = self._pending.pop(key)
            future.set_exception(error)
            return
        with self._lock:
            self._keep(key, program, loaded=loaded)
            future = self._pending.pop(key)
        future.set_result(program)
        self.builder.save(key, serialized)

    def _compile(self, key: Key) -> tuple[Program, Serialized | None]:
        if key in self._evicted_keys:
            self.builder.warn_unexpected(
                key, f"it was evicted, because max_executables={self._capacity}; raise max_executables"
            )
        elif isinstance(key, Bucket) and self._steps and key not in self._steps:
            self.builder.warn_unexpected(key, "it was not prepared; please report this, with the features in use")
        return self.builder.compile(key)

    def _compile_for(self, key: Key, arguments: Sequence[Any]) -> Program:
        program = self.builder.compile_for(key, arguments)
        with self._lock:
            self._keep(key, program)
        return program

    def _keep(self, key: Key, program: Program, *, loaded: bool = False) -> None:
        self._ready[key] = program
        self._first_calls[key] = loaded
        while len(self._ready) > self._capacity:
            self._evicted_keys.add(self._ready.popitem(last=False)[0])


def _readiness(program: Future[Program]) -> Future[None]:
    """Return a future with the outcome of another, but without a reference to the program."""
    ready: Future[None] = Future()

    def pass_on(future: Future[Program]) -> None:
        error = future.exception()
        if error is None:
            ready.set_result(None)
        else:
            ready.set_exception(error)

    program.add_done_callback(pass_on)
    return ready


def _wait_for_one(programs: Sequence[Future[Program]]) -> None:
    """Wait until one program is ready; raise its error if it failed."""
    raise_first(wait(programs, return_when=FIRST_COMPLETED).done)
