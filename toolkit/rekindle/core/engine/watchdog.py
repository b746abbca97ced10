"""The watchdog: detects ticks and other work that the device does not finish in time, and lets their callers go."""

import math
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from rekindle.core.concurrency.threads import Work
from rekindle.core.errors import StepTimeout
from rekindle.core.messages import (
    Collect,
    Dispatched,
    Inspect,
    Message,
    Offload,
    Overdue,
    Plan,
    PutAdapter,
    PutPages,
    UseWeights,
)
from rekindle.core.words import seconds

ACCELERATOR_SECONDS = 120.0
"""Timeout on GPUs and TPUs, where a tick takes milliseconds, or seconds with much memory swapped out."""
CPU_SECONDS = 1800.0
"""Timeout on CPUs, where 512 tokens through the largest model can take minutes on a busy machine."""

WORK: dict[type[Message], str] = {
    Offload: "a copy of pages",
    Collect: "a copy of pages",
    PutPages: "a copy of pages",
    UseWeights: "an exchange of weights",
    PutAdapter: "an adapter",
    Inspect: "an inspection",
}
"""Work of the device beside ticks, by its message, in words."""
STOPPED_SECONDS = 5.0
"""Delay of the watchdog's wake-up that indicates a stopped process."""


def timeout_of(setting: float | None, platform: str) -> float:
    """Return the largest time of a tick in seconds: the setting, else by the platform."""
    return setting if setting is not None else CPU_SECONDS if platform == "cpu" else ACCELERATOR_SECONDS


Key = tuple[type[Message], int]
"""The type of a message, and its ticket where several are handled at once."""


@dataclass(frozen=True, slots=True)
class StuckWork:
    """A tick, or other work of the device, beyond its timeout.

    Attributes:
        name: its name, such as "tick 1".
        since: start of the timing, by the watchdog's clock.
        reports: number of reports so far.
        error: the error of its callers in the latest report.
    """

    name: str
    since: float
    reports: int
    error: StepTimeout


class Watchdog:
    """Times the ticks of one lane on a daemon thread, started with the first tick and asleep between ticks.

    The time of a tick starts when the stepper takes its plan, and again when the settler waits for its results. It
    stands still while the stepper waits for a program. The stepper's other work is timed likewise.

    Args:
        timeout: largest time of either phase in seconds; infinity disables the watchdog.
        report: function for `Overdue`, called on the watchdog's thread every `timeout` seconds while work is stuck.
        wait_ended: function for the time at which the stepper last got an awaited program; infinity during the wait.
        clock: clock of `wait_ended`, in seconds.
    """

    def __init__(
        self,
        timeout: float,
        report: Callable[[Overdue], None],
        wait_ended: Callable[[], float] = lambda: -math.inf,
        clock: Callable[[], float] = monotonic,
    ):
        self._timeout, self._report, self._wait_ended, self._clock = timeout, report, wait_ended, clock
        self._plans: dict[int, Plan] = {}
        self._current: dict[Key, tuple[Message, float]] = {}  # work in progress, and its start
        self._stuck: StuckWork | None = None
        self._changed = threading.Condition()
        self._sleeping, self._stopped = False, False
        self._thread: Work | None = None

    @property
    def stuck(self) -> str | None:
        """The stuck work and its duration, as text; None if nothing is stuck. Thread-safe."""
        stuck = self._stuck
        return None if stuck is None else f"stuck in {stuck.name} for {seconds(self._clock() - stuck.since)}"

    @property
    def error(self) -> StepTimeout | None:
        """The error of the stuck work's callers; None if nothing is stuck. Thread-safe."""
        stuck = self._stuck
        return None if stuck is None else stuck.error

    def begin(self, message: Message) -> None:
        """Start timing a message that an actor begins to handle; called on the engine's thread."""
        if self._timeout == math.inf or not _is_timed(message):
            return
        with self._changed:
            if isinstance(message, Plan):
                self._plans[message.tick] = message
            self._current[_key(message)] = message, self._clock()
            if self._sleeping:
                self._changed.notify()
        if self._thread is None:
            self._thread = Work(self._watch, "watchdog", self.stop)

    def end(self, message: Message) -> None:
        """Stop timing a message that an actor has handled; called on the engine's thread."""
        if not _is_timed(message):
            return
        with self._changed:
            self._current.pop(_key(message), None)
            if isinstance(message, Dispatched):
                self._plans.pop(message.tick, None)
            if self._stuck is not None and self._stuck.name == _name(message):
                self._stuck = None

    def look(self) -> float | None:
        """Report the longest-running work if it is overdue.

        Returns:
            Seconds until work can be overdue; None without work to time.
        """
        with self._changed:
            if not self._current:
                return None
            since, message = min(map(self._since, self._current), key=lambda current: current[0])
            now, name = self._clock(), _name(message)
            reports = self._stuck.reports if self._stuck is not None and self._stuck.name == name else 0
            remaining = since + (1 + reports) * self._timeout - now
            if remaining > 0:
                return min(remaining, self._timeout)
            error = self._error(message, now - since)
            self._stuck = StuckWork(name, since, reports + 1, error)
        self._report(Overdue(message.tick if isinstance(message, Plan | Dispatched) else None, error))
        return self._timeout

    def discount(self, late: float) -> None:
        """Exclude the seconds for which the whole process was stopped, as by Ctrl-Z in a terminal."""
        self._current = {key: (message, since + late) for key, (message, since) in self._current.items()}

    def stop(self) -> None:
        """Stop watching. Returns at once; thread-safe, and may be called repeatedly."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _since(self, key: Key) -> tuple[float, Message]:
        """Return the start of some work, excluding the stepper's waits for programs; and its message."""
        message, since = self._current[key]
        return since if isinstance(message, Dispatched) else max(since, self._wait_ended()), message

    def _error(self, message: Message, elapsed: float) -> StepTimeout:
        tick = message.tick if isinstance(message, Plan | Dispatched) else 0
        plan = self._plans.get(tick)  # None for other work, or if a replaced stepper dispatches without a plan
        chunks = () if plan is None else plan.chunks
        rows = () if plan is None else plan.rows
        return StepTimeout(
            f"the device has not finished {_name(message)} within watchdog_timeout, {seconds(self._timeout)}: the step "
            "hangs, or the machine is far too busy. The session serves on as soon as it ends; if it never "
            "does, restart the kernel. error.stacks has what every thread is doing; open(watchdog_timeout=...) sets "
            "the limit",
            tick=tick,
            prompt_tokens=sum(len(chunk.tokens) for chunk in chunks),
            rows=len(rows),
            requests=(*(chunk.request_id for chunk in chunks), *(row.request_id for row in rows)),
            seconds=elapsed,
            stacks=stacks(),
        )

    def _watch(self) -> None:
        while True:
            timeout = self.look()
            with self._changed:
                if self._stopped:
                    return
                if timeout is None and self._current:  # a tick began since
                    continue
                self._sleeping, began = timeout is None, self._clock()
                self._changed.wait(timeout)
                self._sleeping = False
                if timeout is not None and (late := self._clock() - began - timeout) > STOPPED_SECONDS:
                    self.discount(late)


def _is_timed(message: Message) -> bool:
    return isinstance(message, Plan | Dispatched) or type(message) in WORK


def _key(message: Message) -> Key:
    return type(message), getattr(message, "ticket", 0)


def _name(message: Message) -> str:
    return f"tick {message.tick}" if isinstance(message, Plan | Dispatched) else WORK[type(message)]


def stacks() -> str:
    """Return the tracebacks of all threads of this process, with their names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)!r}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
