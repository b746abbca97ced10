"""The compiled programs of a model in a bounded LRU, loaded or compiled ahead of their first use or at it."""

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
from rekindle.core.device.jax_settings import under_own_settings
from rekindle.core.device.programs.lowering import Key, Program, Programs, temporary_bytes
from rekindle.core.device.programs.making import Making
from rekindle.core.device.programs.readiness import raise_first
from rekindle.core.device.programs.store import ProgramStore, Serialized
from rekindle.core.device.programs.workers import Workers
from rekindle.core.errors import SessionClosed

LIGHT_PADDING = 64
"""The tokens of padding that take a CPU no longer than loading a program: 0.1 to 0.15 s for either on two cores."""


class ArgumentsLost(Exception):
    """A damaged program that was loaded took its donated arguments with it; the next call is of one made anew."""


class Executables:
    """The programs of a model, each made by a worker thread when it is asked for; safe to use from several threads.

    Args:
        programs: how each program is lowered.
        capacity: programs kept, the least recently used given up first.
        store: where programs are loaded from and saved; None for nowhere.

    Attributes:
        making: makes each program, and counts how.
        wait_ended: when a lane last got a program that it waited for, by `time.monotonic`; infinity while one waits.
    """

    def __init__(self, programs: Programs, capacity: int, store: ProgramStore | None = None):
        self.making = Making(programs, store)
        self.wait_ended = -math.inf
        self._waits: list[Key] = []
        self._capacity = capacity
        self._ready: OrderedDict[Key, Program] = OrderedDict()
        self._coming: dict[Key, Future[Program]] = {}
        self._given_up: set[Key] = set()
        self._uncalled: dict[Key, bool] = {}  # whether each was loaded
        self._workspaces: dict[Key, int | None] = {}  # asking the compiler takes tens of milliseconds
        self._workers = Workers(self._make, self.stop)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def awaited(self) -> Key | None:
        """The key of a program that a lane waits for; None while none does. Any thread may ask."""
        return next(iter(self._waits), None)

    def workspace(self) -> int | None:
        """Return the bytes that the largest of the ready steps needs while it runs; None if that is not known."""
        with self._lock:
            steps = {key: program for key, program in self._ready.items() if isinstance(key, Bucket)}
        for key in steps.keys() - self._workspaces.keys():
            self._workspaces[key] = temporary_bytes(steps[key])
        return max((size for key in steps if (size := self._workspaces[key]) is not None), default=None)

    async def for_step(self, needed: Bucket) -> tuple[Bucket, Program]:
        """Return the bucket in which a tick shall run, and its program.

        While the program of the needed bucket is being made, a larger bucket serves if its program is ready, and if it
        pads little or the needed program has to be compiled. If there is none, wait for the first of them.
        """
        while self._futures_of([needed]):
            larger = buckets.larger(self._buckets(), needed)
            if await to_thread.run_sync(self.making.is_stored, needed, abandon_on_cancel=True):
                larger = [bucket for bucket in larger if bucket.size - needed.size <= LIGHT_PADDING]
            for bucket in (needed, *larger):
                program = self.find(bucket)
                if program is not None:
                    return bucket, program
            futures = [self.obtain(needed), *self._futures_of(larger)]
            with self._awaiting(needed):
                await to_thread.run_sync(_wait_for_one, futures, abandon_on_cancel=True)
        return needed, await self.ready(needed)

    async def ready(self, key: Key) -> Program:
        """Return a program, after a wait if it is not ready."""
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
        """Call a program. If it was not made for such arguments, warn and compile one for them, which takes seconds.

        The first call of a program is made in a worker thread, because JAX prepares it in Python, argument by argument.
        """
        try:
            if key in self._uncalled:
                return await to_thread.run_sync(under_own_settings, self._first_call, key, program, *arguments)
            return self._call(program, *arguments)
        except (TypeError, ValueError):  # so jax refuses what the program was not compiled for, before it runs
            compile_for = partial(under_own_settings, self._compile_for, key, arguments)
            with self._awaiting(key):
                program = await to_thread.run_sync(compile_for, abandon_on_cancel=True)
            return program(*arguments)

    def run(self, key: Key, *arguments: Any) -> Any:
        """Call a program once it is ready, in this thread, which may block."""
        program = self.find(key) or self.obtain(key).result()
        return self._first_call(key, program, *arguments) if key in self._uncalled else self._call(program, *arguments)

    def _call(self, program: Program, *arguments: Any) -> Any:
        results = program(*arguments)
        self._workers.runs(results)
        return results

    def _first_call(self, key: Key, program: Program, *arguments: Any) -> Any:
        """Call a program for the first time. If it was loaded and fails, drop what is stored, warn, and compile it.

        It is then called again.

        Raises:
            ArgumentsLost: the donated arguments are lost with the failure.
        """
        if not self._uncalled.pop(key, False):
            return self._call(program, *arguments)
        try:
            return jax.block_until_ready(self._call(program, *arguments))
        except jax.errors.JaxRuntimeError as error:
            self.making.drop(key, error)
            with self._awaiting(key):
                program, serialized = self._compile(key)
            with self._lock:
                self._keep(key, program)
            self.making.save(key, serialized)
            if any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)):
                raise ArgumentsLost("a stored program was damaged, and is made anew") from error
            return program(*arguments)

    def find(self, key: Key) -> Program | None:
        """Return a program if it is ready. The caller's reference keeps it alive whatever is given up."""
        self._workers.called()
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
            return self._ready.get(key)

    def prepare(self, keys: Iterable[Key], *, patient: bool = False) -> list[Future[None]]:
        """Begin to make programs, in the order of their keys.

        Args:
            patient: whether each begins only when no program was called for a moment, or after seconds of calls.

        Returns:
            For each program, a future that is done when it is ready. It does not keep the program alive.
        """
        if patient:
            self._workers.called()
        with self._lock:
            programs = [self._ask(key, lambda key: self._workers.in_turn(key, patient=patient)) for key in keys]
        return [_readiness(program) for program in programs]

    def obtain(self, key: Key) -> Future[Program]:
        """Make a program as soon as possible, if it is not ready."""
        with self._lock:
            if key in self._coming:
                self._workers.hurry(key)
            return self._ask(key, self._workers.now)

    def idle(self) -> Future[None]:
        """Return a future that is done once nothing is being made or saved."""
        return self._workers.idle()

    def free(self) -> None:
        """Stop, and give up all programs: those that are ready now, and those that are being made when they are.

        On a CPU a program has about 240 mappings of memory, and Linux allows a process 65,530 by default.
        """
        self.stop()
        with self._lock:
            self._ready.clear()

    def stop(self) -> None:
        """Begin to make nothing more, and fail the futures of what is not begun."""
        with self._lock:
            waiting = [self._coming.pop(key) for key in self._workers.stop()]
            self._capacity = 0
        for future in waiting:
            future.set_exception(SessionClosed("the session was closed before the program was made"))

    def _buckets(self) -> list[Bucket]:
        """Return the buckets whose programs are ready or being made."""
        with self._lock:
            return [key for key in (*self._ready, *self._coming) if isinstance(key, Bucket)]

    def _futures_of(self, keys: Iterable[Key]) -> list[Future[Program]]:
        """Return the futures of those programs that are being made."""
        with self._lock:
            return [self._coming[key] for key in keys if key in self._coming]

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
        """Load or compile a program, hand it to all who wait, and then save it if it was compiled."""
        try:
            program, serialized = self.making.load(key), None
            loaded = program is not None
            if program is None:
                program, serialized = self._compile(key)
        except BaseException as error:
            with self._lock:
                future = self._coming.pop(key)
            future.set_exception(error)
            return
        with self._lock:
            self._keep(key, program, loaded=loaded)
            future = self._coming.pop(key)
        future.set_result(program)
        self.making.save(key, serialized)

    def _compile(self, key: Key) -> tuple[Program, Serialized | None]:
        if key in self._given_up:
            self.making.tell(key, f"it was given up for others, as max_executables keeps {self._capacity}; raise it")
        return self.making.compile(key)

    def _compile_for(self, key: Key, arguments: Sequence[Any]) -> Program:
        program = self.making.compile_for(key, arguments)
        with self._lock:
            self._keep(key, program)
        return program

    def _keep(self, key: Key, program: Program, *, loaded: bool = False) -> None:
        self._ready[key] = program
        self._uncalled[key] = loaded
        while len(self._ready) > self._capacity:
            self._given_up.add(self._ready.popitem(last=False)[0])


def _readiness(program: Future[Program]) -> Future[None]:
    """Return a future that is done when the other is, with its error if it has one, and does not hold its program."""
    ready: Future[None] = Future()

    def tell(made: Future[Program]) -> None:
        error = made.exception()
        if error is None:
            ready.set_result(None)
        else:
            ready.set_exception(error)

    program.add_done_callback(tell)
    return ready


def _wait_for_one(programs: Sequence[Future[Program]]) -> None:
    """Wait until one program is ready; raise its error if it failed."""
    raise_first(wait(programs, return_when=FIRST_COMPLETED).done)
