"""Waiting operations, written once for callers that await and callers that block.

An operation does no input or output itself: it yields steps, and its runner takes them.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from math import inf
from typing import Any, Literal, Protocol, TypeVar

from anyio.lowlevel import checkpoint

from rekindle.core.concurrency.feed import TO_THE_END, Feed, interruptible
from rekindle.core.concurrency.interrupts import brief
from rekindle.core.concurrency.threads import Work
from rekindle.core.tracebacks import release_variables

T = TypeVar("T")

REASON_SECONDS = 0.25
"""Interval between two questions for a reason to end a wait."""


class WaitStep(Protocol):
    """A step of an operation. The runner sends its result, or throws its error, into the operation."""

    async def awaited(self) -> Any:
        """Take the step without blocking the loop."""

    def blocked(self) -> Any:
        """Take the step by blocking the thread."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait for more items of a feed.

    Attributes:
        feed: feed to wait for.
        count: the wait ends once there are more items than this, or the feed is closed.
        timeout: seconds until the operation resumes anyway; None waits forever.
    """

    feed: Feed[Any]
    count: int = TO_THE_END
    timeout: float | None = None

    async def awaited(self) -> None:
        await self.feed.wait(self.count, self.timeout)

    def blocked(self) -> None:
        self.feed.wait_blocking(self.count, self.timeout)


Waits = Generator[WaitStep, Any, T]
"""An operation: a generator that yields its steps and returns its result."""

Way = Literal["awaits", "blocks"]
"""The caller's way of waiting for an operation."""


class _AskWay:
    """A step with the caller's way of waiting as its result."""

    async def awaited(self) -> Way:
        return "awaits"

    def blocked(self) -> Way:
        return "blocks"


def way() -> Waits[Way]:
    """Return the way of waiting of this operation's caller: it awaits, or it blocks."""
    answer: Way = yield _AskWay()
    return answer


class _Pause:
    """A step for other tasks."""

    async def awaited(self) -> None:
        await checkpoint()

    def blocked(self) -> None:
        """Return at once, since all threads run."""


def pause() -> Waits[None]:
    """Let the other tasks of a loop run."""
    yield _Pause()


async def awaited(waits: Waits[T]) -> T:
    """Run an operation without blocking the loop, and return its result."""
    __tracebackhide__ = True  # a cell shows errors without such frames
    try:
        step = next(waits)
        while True:
            try:
                outcome = await step.awaited()
            except BaseException as error:
                step = waits.throw(brief(error))
            else:
                step = waits.send(outcome)
    except StopIteration as ended:
        result: T = ended.value
        return result


def in_a_thread(work: Callable[[], T], name: str, stop: Callable[[], None] = lambda: None) -> Waits[T]:
    """Run work in a new thread and return its result; a caller can abandon the wait at any time.

    Args:
        name, stop: see `Work`; abandoning the wait stops the work too.

    Raises:
        Exception: the error of the work.
    """
    done: Feed[T] = Feed()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            done.put(work())
        except BaseException as error:  # a panic in a Rust library is no Exception
            release_variables(error)
            raised.append(error)
        done.close()

    Work(run, name, stop)
    try:
        yield Wait(done)
    except BaseException:
        stop()
        raise
    if raised:
        raise raised[0]
    return done.items[0]


def until_closed(feed: Feed[Any]) -> Waits[None]:
    """Wait until a feed is closed."""
    yield Wait(feed)


def unless(waits: Waits[T], reason: Callable[[], Exception | None]) -> Waits[T]:
    """Run an operation, and end its waits by an error once there is a reason.

    Args:
        reason: returns the error, which is raised within the operation, or None. It is called a few times per second.
    """
    try:
        step = next(waits)
        while True:
            try:
                outcome = yield from _unless(step, reason)
            except BaseException as error:
                step = waits.throw(error)
            else:
                step = waits.send(outcome)
    except StopIteration as ended:
        result: T = ended.value
        return result


def _unless(step: WaitStep, reason: Callable[[], Exception | None]) -> Waits[Any]:
    if not isinstance(step, Wait):
        return (yield step)
    rest = inf if step.timeout is None else step.timeout
    while not step.feed.has_more(step.count):
        pause = min(rest, REASON_SECONDS)
        yield Wait(step.feed, step.count, pause)
        if not step.feed.has_more(step.count) and (error := reason()) is not None:
            raise error.with_traceback(None)
        rest -= pause
        if rest <= 0:
            break
    return None


def blocked(waits: Waits[T]) -> T:
    """Run an operation by blocking the thread, and return its result."""
    __tracebackhide__ = True
    with interruptible():  # around the whole operation: work between waits, such as drawing, blocks a loop too
        return _blocked(waits)


def _blocked(waits: Waits[T], error_of_step: BaseException | None = None) -> T:
    __tracebackhide__ = True
    try:
        step = next(waits) if error_of_step is None else waits.throw(error_of_step)
        while True:
            step = waits.send(step.blocked())
    except StopIteration as ended:
        result: T = ended.value
        return result
    except BaseException as error:
        if getgeneratorstate(waits) == GEN_CLOSED:  # the error is the operation's own; all others are interrupts
            raise
        return _blocked(waits, brief(error))
    finally:
        del error_of_step  # its traceback refers to this frame: a reference cycle
