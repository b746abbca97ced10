"""An operation that waits, written once: its caller awaits it or, in its blocking twin, blocks."""

from collections.abc import Generator
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeVar

from rekindle.concurrency.feed import TO_THE_END, Feed, interruptible

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """What is waited for next.

    Attributes:
        feed: until it has more than `seen` items, or is closed.
        timeout: seconds after which to go on all the same; None for never.
    """

    feed: Feed[Any]
    seen: int = TO_THE_END
    timeout: float | None = None


Waits = Generator[Wait, None, T]
"""An operation: it yields what it waits for and returns its result. Leaving a wait early raises in it."""


async def awaited(waits: Waits[T]) -> T:
    """Run an operation; the loop keeps turning meanwhile."""
    __tracebackhide__ = True  # a cell shows errors without such frames
    try:
        wait = next(waits)
        while True:
            try:
                await wait.feed.grown(wait.seen, wait.timeout)
            except BaseException as error:
                wait = waits.throw(error)
            else:
                wait = next(waits)
    except StopIteration as ended:
        result: T = ended.value
        return result


def blocked(waits: Waits[T]) -> T:
    """Run an operation on a thread that has nothing else to do."""
    __tracebackhide__ = True
    with interruptible():  # not the waits alone: what is done between them, such as drawing, blocks a loop too
        return _blocked(waits)


def _blocked(waits: Waits[T], left_by: BaseException | None = None) -> T:
    __tracebackhide__ = True
    try:
        wait = next(waits) if left_by is None else waits.throw(left_by)
        while True:
            wait.feed.grown_blocking(wait.seen, wait.timeout)
            wait = next(waits)
    except StopIteration as ended:
        result: T = ended.value
        return result
    except BaseException as error:
        if getgeneratorstate(waits) == GEN_CLOSED:  # its own; anything else is an interrupt, wherever it came
            raise
        return _blocked(waits, error)
    finally:
        del left_by  # which knows this frame, and so would hold itself
