"""A watchdog over the loops of all engines in a process: how long the longest step of each actor takes.

A step is what runs on the loop from one await to the next. It is measured in CPU time of the engine's thread, so that
other threads and other processes do not count. On a crowded machine they still make it slower, and that is forgiven:
for each loss of its core a little, and a long step as far as a known piece of work is slower than it was once. That is
not all: on a virtual machine, a few steps in a hundred thousand took up to 40 ms, though they did next to nothing. So
one long step says nothing; what is too long by its nature is so each time, in all the variants of its test.
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
"""The longest that a step may take."""
REPEATED = 5
"""How many steps of one actor must be longer, in one test with all its parameters, to be too long by their nature."""
SHARE = 1 / 200
"""Which share of its steps there these must be."""
PREEMPTED_SECONDS = 0.00025
"""What a step is forgiven for each time that the kernel gave its core to another thread, whose data fill the caches."""


@dataclass(slots=True)
class Longest:
    """The steps of one actor.

    Attributes:
        seconds, where: how long the longest was, and in which test.
        steps: how many there were in each test.
        over: how many of them were too long.
    """

    seconds: float = 0.0
    where: str = ""
    steps: Counter[str] = field(default_factory=Counter)
    over: Counter[str] = field(default_factory=Counter)

    @property
    def too_long(self) -> list[str]:
        """The tests in which steps are too long again and again, each with how many are."""
        return [
            f"{over} of {self.steps[test]} in {test}"
            for test, over in self.over.items()
            if over >= max(REPEATED, SHARE * self.steps[test])
        ]


@dataclass
class Watchdog:
    """Measures the asyncio loops of those threads that have this name.

    Garbage collections are left out: they run on whichever thread happens to allocate, for as long as the objects of
    the whole process take.

    Attributes:
        thread: the name.
        where: a note for the steps that are measured from now on.
        longest: by the name of the actor; "others" for what is of none.
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
        """Return the names of those whose steps are above the limit again and again in one test."""
        return [name for name, longest in self.longest.items() if longest.too_long]

    def report(self) -> dict[str, Any]:
        """Return what was measured, as plain values that another process can `take`."""
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
        """Add what the watchdog of another process measured."""
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
    """Return how often this thread had to give up its core; always 0 where the system does not say."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw if sys.platform == "linux" else 0


def _pace() -> float:
    """Return how long a piece of work takes that is always the same."""
    began = thread_time()
    sum(range(50_000))
    return thread_time() - began


def _name(handle: asyncio.Handle) -> str:
    task: Any = getattr(getattr(handle, "_callback", None), "__self__", None)
    name = task.get_name() if isinstance(task, asyncio.Task) else ""
    return name if name in ACTORS else "others"
