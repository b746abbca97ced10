"""A watchdog over the loops of all engines in a process: how long the longest step of each actor takes.

A step runs on the loop from one await to the next. It is measured in CPU time of the engine's thread, without the
time of other threads and processes. On a crowded machine they still make it slower, and the watchdog forgives this:
for each loss of its core a little, and a long step as far as a known piece of work is slower than it was once. This is
not all: on a virtual machine, a few steps in a hundred thousand took up to 40 ms, though they did next to nothing. So
one long step says nothing; a step too long by its nature is so each time, in all the variants of its test.
"""

import asyncio
import gc
import resource
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from time import thread_time
from typing import Any
from unittest.mock import patch

from rekindle.core.engine.wiring import Actors

ACTORS = {actor.name for actor in fields(Actors)}
LIMIT_SECONDS = 0.005
"""The limit of a step."""
REPEATED = 5
"""How many steps of one actor must be longer, in one test with all its parameters, to be too long by their nature."""
SHARE = 1 / 200
"""The share of long steps among all of the actor's steps there."""
PREEMPTED_SECONDS = 0.00025
"""A step's discount for each loss of its core to another thread, because the other's data fill the caches."""


@dataclass(slots=True)
class Longest:
    """The steps of one actor.

    Attributes:
        seconds, where: how long the longest was, and in which test.
        steps: how many there were in each test.
        over: how many steps were too long.
    """

    seconds: float = 0.0
    where: str = ""
    steps: Counter[str] = field(default_factory=Counter)
    over: Counter[str] = field(default_factory=Counter)

    @property
    def too_long(self) -> list[str]:
        """The tests with steps too long again and again, and their number in each."""
        return [
            f"{over} of {self.steps[test]} in {test}"
            for test, over in self.over.items()
            if over >= max(REPEATED, SHARE * self.steps[test])
        ]


@dataclass
class Watchdog:
    """Measures the asyncio loops of all threads of one name.

    Garbage collections are left out: they run on whichever thread happens to allocate, for as long as the objects of
    the whole process take.

    Attributes:
        thread: the name.
        where: a note for the steps from now on.
        longest: by the name of the actor; "others" for steps without one.
    """

    thread: str = "rekindle-engine"
    where: str = ""
    longest: dict[str, Longest] = field(default_factory=dict)
    _pace: float = field(default_factory=lambda: min(_pace() for _ in range(5)))
    _collecting: float = 0.0
    _collected: threading.local = field(default_factory=threading.local)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the block as a step of an actor of this name, on any thread."""
        self._collected.seconds = 0.0
        preempted, began = _preemptions(), thread_time()
        yield
        seconds = thread_time() - began - self._collected.seconds - PREEMPTED_SECONDS * (_preemptions() - preempted)
        if seconds > LIMIT_SECONDS:
            pace = _pace()
            self._pace = min(self._pace, pace)
            seconds *= self._pace / pace
        self._step(name, seconds)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Measure all steps within the block."""
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            if threading.current_thread().name != self.thread:
                run(handle)
                return
            with self.step(_name(handle)):
                run(handle)

        with patch.object(asyncio.Handle, "_run", measured):
            gc.callbacks.append(self._collects)
            try:
                yield
            finally:
                gc.callbacks.remove(self._collects)

    def too_long(self) -> list[str]:
        """Return the names of the actors with steps above the limit again and again in one test."""
        return [name for name, longest in self.longest.items() if longest.too_long]

    def report(self) -> dict[str, Any]:
        """Return the measurements as plain values, for `take` in another process."""
        return {
            name: {
                "seconds": longest.seconds,
                "where": longest.where,
                "steps": dict(longest.steps),
                "over": dict(longest.over),
            }
            for name, longest in self.longest.items()
        }

    def take(self, report: dict[str, Any]) -> None:
        """Add the measurements of another process's watchdog."""
        for name, other in report.items():
            longest = self.longest.setdefault(name, Longest())
            longest.steps.update(other["steps"])
            longest.over.update(other["over"])
            if other["seconds"] > longest.seconds:
                longest.seconds, longest.where = other["seconds"], other["where"]

    def _step(self, name: str, seconds: float) -> None:
        longest = self.longest.setdefault(name, Longest())
        test = self.where.partition("[")[0]
        longest.steps[test] += 1
        if seconds > LIMIT_SECONDS:
            longest.over[test] += 1
        if seconds > longest.seconds:
            longest.seconds, longest.where = seconds, self.where

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = thread_time()
        else:
            self._collected.seconds = getattr(self._collected, "seconds", 0.0) + thread_time() - self._collecting


def _preemptions() -> int:
    """Count this thread's losses of its core; always 0 on systems without this count."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if sys.platform == "linux" else 0


def _pace() -> float:
    """Measure the seconds of a fixed piece of work."""
    began = thread_time()
    sum(range(50_000))
    return thread_time() - began


def _name(handle: asyncio.Handle) -> str:
    task: Any = getattr(getattr(handle, "_callback", None), "__self__", None)
    name = task.get_name() if isinstance(task, asyncio.Task) else ""
    return name if name in ACTORS else "others"
