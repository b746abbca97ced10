"""The watchdog: detects ticks that the device does not finish in time, and lets their requests fail."""

import math
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from rekindle.core.concurrency.threads import Work
from rekindle.core.errors import StepTimeout
from rekindle.core.messages import Dispatched, Message, Overdue, Plan
from rekindle.core.words import seconds

ACCELERATOR_SECONDS = 120.0
"""Timeout on GPUs and TPUs, where a tick takes milliseconds, or seconds with much memory swapped out."""
CPU_SECONDS = 1800.0
"""Timeout on CPUs, where 512 tokens through the largest model can take minutes on a busy machine."""

STOPPED_SECONDS = 5.0
"""Delay of the watchdog's wake-up that indicates a stopped process."""


def timeout_of(setting: float | None, platform: str) -> float:
    """Return the largest time of a tick in seconds: the setting, else by the platform."""
    return setting if setting is not None else CPU_SECONDS if platform == "cpu" else ACCELERATOR_SECONDS


@dataclass(frozen=True, slots=True)
class StuckTick:
    """A tick beyond its timeout.

    Attributes:
        tick: number of the tick.
        since: start of the timing, by the watchdog's clock.
        reports: number of reports so far.
        error: the error of its requests in the latest report.
    """

    tick: int
    since: float
    reports: int
    error: StepTimeout


class Watchdog:
    """Times the ticks of one lane on a daemon thread, started with the first tick and asleep between ticks.

    The time of a tick starts when the stepper takes its plan, and again when the settler waits for its results. It
    stands still while the stepper waits for a program.

    Args:
        timeout: largest time of either phase in seconds; infinity disables the watchdog.
        report: function for `Overdue`, called on the watchdog's thread every `timeout` seconds while a tick is stuck.
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
        self._current: dict[type[Message], tuple[int, float]] = {}  # tick in each actor, and its start
        self._stuck: StuckTick | None = None
        self._changed = threading.Condition()
        self._sleeping, self._stopped = False, False
        self._thread: Work | None = None

    @property
    def stuck(self) -> str | None:
        """The stuck tick and its duration, as text; None if no tick is stuck. Thread-safe."""
        stuck = self._stuck
        return None if stuck is None else f"stuck in tick {stuck.tick} for {seconds(self._clock() - stuck.since)}"

    @property
    def error(self) -> StepTimeout | None:
        """The error of the stuck tick's requests; None if no tick is stuck. Thread-safe."""
        stuck = self._stuck
        return None if stuck is None else stuck.error

    def begin(self, message: Message) -> None:
        """Start timing a message that an actor begins to handle; called on the engine's thread."""
        if self._timeout == math.inf or not isinstance(message, Plan | Dispatched):
            return
        with self._changed:
            if isinstance(message, Plan):
                self._plans[message.tick] = message
            self._current[type(message)] = message.tick, self._clock()
            if self._sleeping:
                self._changed.notify()
        if self._thread is None:
            self._thread = Work(self._watch, "watchdog", self.stop)

    def end(self, message: Message) -> None:
        """Stop timing a message that an actor has handled; called on the engine's thread."""
        if not isinstance(message, Plan | Dispatched):
            return
        with self._changed:
            self._current.pop(type(message), None)
            if isinstance(message, Dispatched):
                self._plans.pop(message.tick, None)
            if self._stuck is not None and self._stuck.tick == message.tick:
                self._stuck = None

    def look(self) -> float | None:
        """Report the longest-running tick if it is overdue.

        Returns:
            Seconds until a tick can be overdue; None without a tick to time.
        """
        with self._changed:
            if not self._current:
                return None
            tick, since = min((self._since(kind) for kind in self._current), key=lambda current: current[1])
            now = self._clock()
            reports = self._stuck.reports if self._stuck is not None and self._stuck.tick == tick else 0
            remaining = since + (1 + reports) * self._timeout - now
            if remaining > 0:
                return min(remaining, self._timeout)
            error = self._error(tick, now - since)
            self._stuck = StuckTick(tick, since, reports + 1, error)
        self._report(Overdue(tick, error))
        return self._timeout

    def discount(self, late: float) -> None:
        """Exclude the seconds for which the whole process was stopped, as by Ctrl-Z in a terminal."""
        self._current = {kind: (tick, since + late) for kind, (tick, since) in self._current.items()}

    def stop(self) -> None:
        """Stop watching. Returns at once; thread-safe, and may be called repeatedly."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _since(self, kind: type[Message]) -> tuple[int, float]:
        """Return the tick in an actor and the start of its time, excluding any wait for a program."""
        tick, since = self._current[kind]
        return tick, max(since, self._wait_ended()) if kind is Plan else since

    def _error(self, tick: int, elapsed: float) -> StepTimeout:
        plan = self._plans.get(tick)  # None if a replaced stepper dispatches without a plan
        chunks = () if plan is None else plan.chunks
        rows = () if plan is None else plan.rows
        return StepTimeout(
            f"the device has not finished tick {tick} within watchdog_timeout, {seconds(self._timeout)}: the step "
            "hangs, or the machine is far too busy. The session serves on as soon as the tick ends; if it never "
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


def stacks() -> str:
    """Return the tracebacks of all threads of this process, with their names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)!r}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
