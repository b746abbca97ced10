"""The watchdog: it notices a tick that the device does not finish, and has the requests that wait for it failed."""

import math
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from rekindle.core.concurrency.threads import Work
from rekindle.core.errors import StepTimeout
from rekindle.core.markup import seconds
from rekindle.core.messages import Dispatched, Message, Overdue, Plan

ACCELERATOR_SECONDS = 120.0
"""The timeout on GPUs and TPUs, where a tick takes milliseconds, and seconds with much swapped out."""
CPU_SECONDS = 1800.0
"""The timeout on CPUs, where 512 tokens through the largest model that fits can take minutes on a busy machine."""

STOPPED_SECONDS = 5.0
"""A thread that wakes so much too late belongs to a process that was stopped."""


def timeout_of(given: float | None, platform: str) -> float:
    """Return the seconds that a tick may take: as given, else by the platform."""
    return given if given is not None else CPU_SECONDS if platform == "cpu" else ACCELERATOR_SECONDS


@dataclass(frozen=True, slots=True)
class StuckTick:
    """A tick that has taken longer than it may.

    Attributes:
        since: when its time began, by the clock of the watchdog.
        reports: how often it was reported.
    """

    tick: int
    since: float
    reports: int


class Watchdog:
    """Times the ticks of one engine, on a daemon thread that begins with the first tick and sleeps while none is due.

    The time of a tick begins when the stepper takes its plan, and anew when the settler waits for its results. While
    the stepper waits for a program, it does not run.

    Args:
        timeout: seconds that either may take; infinity for any number.
        report: takes `Overdue`, once for every `timeout` seconds that a tick is stuck, on the watchdog's thread.
        wait_ended: returns when the stepper last got a program that it had waited for, infinity while it waits for one.
        clock: returns seconds, as `wait_ended` has them.
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
        self._begun: dict[type[Message], tuple[int, float]] = {}  # the tick that each actor has, and since when
        self._stuck: StuckTick | None = None
        self._changed = threading.Condition()
        self._sleeping, self._stopped = False, False
        self._thread: Work | None = None

    @property
    def stuck(self) -> str | None:
        """The tick that is stuck and for how long, in words; None if none is. Any thread may ask."""
        stuck = self._stuck
        return None if stuck is None else f"stuck in tick {stuck.tick} for {seconds(self._clock() - stuck.since)}"

    def begin(self, message: Message) -> None:
        """Take note of a message that an actor begins to handle; the engine's thread calls this."""
        if self._timeout == math.inf or not isinstance(message, Plan | Dispatched):
            return
        with self._changed:
            if isinstance(message, Plan):
                self._plans[message.tick] = message
            self._begun[type(message)] = message.tick, self._clock()
            if self._sleeping:
                self._changed.notify()
        if self._thread is None:
            self._thread = Work(self._watch, "watchdog", self.stop)

    def end(self, message: Message) -> None:
        """Take note of a message that an actor has handled; the engine's thread calls this."""
        if not isinstance(message, Plan | Dispatched):
            return
        with self._changed:
            self._begun.pop(type(message), None)
            if isinstance(message, Dispatched):
                self._plans.pop(message.tick, None)
            if self._stuck is not None and self._stuck.tick == message.tick:
                self._stuck = None

    def look(self) -> float | None:
        """Report the tick that has taken longest if it is overdue.

        Returns:
            The seconds until a tick can be overdue; None while nothing is to be timed.
        """
        with self._changed:
            if not self._begun:
                return None
            tick, since = min((self._since(kind) for kind in self._begun), key=lambda begun: begun[1])
            now = self._clock()
            reports = self._stuck.reports if self._stuck is not None and self._stuck.tick == tick else 0
            left = since + (1 + reports) * self._timeout - now
            if left > 0:
                return min(left, self._timeout)
            self._stuck = StuckTick(tick, since, reports + 1)
            error = self._error(tick, now - since)
        self._report(Overdue(tick, error))
        return self._timeout

    def discount(self, late: float) -> None:
        """Leave out the seconds for which the whole process was stopped, as by Ctrl-Z in a terminal."""
        self._begun = {kind: (tick, begun + late) for kind, (tick, begun) in self._begun.items()}

    def stop(self) -> None:
        """Watch no more. Returns at once, and may be called any number of times from any thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _since(self, kind: type[Message]) -> tuple[int, float]:
        """Return a tick, and since when it has been with the stepper or the settler without a wait for a program."""
        tick, since = self._begun[kind]
        return tick, max(since, self._wait_ended()) if kind is Plan else since

    def _error(self, tick: int, elapsed: float) -> StepTimeout:
        plan = self._plans.get(tick)  # none of a stepper that says what it was not told
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
            left = self.look()
            with self._changed:
                if self._stopped:
                    return
                if left is None and self._begun:  # a tick began since
                    continue
                self._sleeping, begun = left is None, self._clock()
                self._changed.wait(left)
                self._sleeping = False
                if left is not None and (late := self._clock() - begun - left) > STOPPED_SECONDS:
                    self.discount(late)


def stacks() -> str:
    """Return the tracebacks of all threads of this process, with their names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)!r}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
