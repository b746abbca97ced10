"""Operations that wait, written once for callers that await them and for callers that block.

An operation does no input and output by itself: it yields its steps, and who runs it takes them.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Literal, Protocol, TypeVar

from rekindle.core.concurrency.feed import TO_THE_END, Feed, interruptible
from rekindle.core.concurrency.interrupts import brief
from rekindle.core.concurrency.threads import Work

T = TypeVar("T")


class WaitStep(Protocol):
    """A step of an operation; the operation goes on with its result. An error in it is raised in the operation."""

    async def awaited(self) -> Any:
        """Take the step while the loop keeps turning."""

    def blocked(self) -> Any:
        """Take the step on a thread that has nothing else to do."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait for more items of a feed.

    Attributes:
        feed: waited for until it has more than `seen` items, or is closed.
        timeout: seconds after which the operation goes on all the same; None for never.
    """

    feed: Feed[Any]
    seen: int = TO_THE_END
    timeout: float | None = None

    async def awaited(self) -> None:
        await self.feed.wait(self.seen, self.timeout)

    def blocked(self) -> None:
        self.feed.wait_blocking(self.seen, self.timeout)


Waits = Generator[WaitStep, Any, T]
"""An operation: a generator that yields its steps and returns its result."""

Way = Literal["awaits", "blocks"]
"""How the caller of an operation waits for it."""


class _AskWay:
    """The step whose result is how the caller waits."""

    async def awaited(self) -> Way:
        return "awaits"

    def blocked(self) -> Way:
        return "blocks"


def way() -> Waits[Way]:
    """Return the way in which the caller of this operation waits: it awaits, or it blocks."""
    found: Way = yield _AskWay()
    return found


async def awaited(waits: Waits[T]) -> T:
    """Run an operation while the loop keeps turning, and return its result."""
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
    """Do work in a thread of its own, so that the wait for it can be left at once, and return what it returns.

    Args:
        name, stop: see `Work`; the work is stopped too when the wait is left.

    Raises:
        Exception: what the work raised.
    """
    done: Feed[T] = Feed()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            done.put(work())
        except BaseException as error:  # a panic of a library in Rust is no Exception
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


def blocked(waits: Waits[T]) -> T:
    """Run an operation on a thread that has nothing else to do, and return its result."""
    __tracebackhide__ = True
    with interruptible():  # around all of it, because work between the waits, such as drawing, blocks a loop too
        return _blocked(waits)


def _blocked(waits: Waits[T], left_by: BaseException | None = None) -> T:
    __tracebackhide__ = True
    try:
        step = next(waits) if left_by is None else waits.throw(left_by)
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
        del left_by  # its traceback refers to this frame: a circle
