"""Interrupts of waiting calls, also in cells under IPython in a terminal, and the messages of their errors."""

import asyncio
import signal
import sys
import threading
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rekindle.core.tracebacks import AnyError, with_short_traceback


def brief(error: AnyError) -> AnyError:
    """Return an error that ends a wait; an interrupt gets the short traceback of Rekindle's own errors in a cell."""
    return with_short_traceback(error) if isinstance(error, KeyboardInterrupt | CancelledError) else error


def tell(error: BaseException, words: str, name: str, value: object) -> None:
    """Add a message and the results so far to an interrupt; ignore any other error.

    The error keeps its identity, since event loops and timeout scopes recognise their cancellations by it.

    Args:
        error: a KeyboardInterrupt, asyncio's CancelledError, or any other error.
        words: the message of an error without one, else a note.
        name, value: an attribute to set on the error.
    """
    if isinstance(error, KeyboardInterrupt | CancelledError):
        vars(error)[name] = value
        say(error, words)


def say(error: BaseException, words: str) -> None:
    """Add a message to an interrupt, as `tell` does; ignore any other error."""
    if not isinstance(error, KeyboardInterrupt | CancelledError):
        return
    if error.args:
        error.add_note(words)
    else:
        error.args = (words,)


class _Cancelling:
    """A signal handler that cancels the waiting tasks.

    Python's own handler raises KeyboardInterrupt out of the loop. Most owners of a loop then cancel its tasks or end
    the process, but IPython leaves the tasks, and their requests would go on.

    Attributes:
        tasks: the waiting tasks.
        interrupted: True after the first interrupt; Python handles the next one.
        alone: True if a single task waited at the interrupt.
    """

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.interrupted = self.alone = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            signal.default_int_handler(number, frame)
        self.interrupted, self.alone = True, len(self.tasks) == 1
        for task in self.tasks:
            task.cancel()


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """End a task's wait at an interrupt, if IPython runs the loop and leaves interrupts to Python.

    Raises:
        KeyboardInterrupt: an interrupt came while no other task waited.
    """
    handler = _handler()
    task = asyncio.current_task()
    if handler is None or task is None:
        yield
        return
    handler.tasks.append(task)
    try:
        yield
    except CancelledError:
        if not handler.alone:  # the first of several tasks to raise it would end the loop before the others end
            raise
        task.uncancel()
        raise KeyboardInterrupt from None
    finally:
        handler.tasks.remove(task)
        if not handler.tasks and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _handler() -> _Cancelling | None:
    """Return the interrupt handler, installed for the first wait; None if others handle interrupts."""
    if threading.current_thread() is not threading.main_thread():
        return None
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler and _in_ipython():
        handler = _Cancelling()
        signal.signal(signal.SIGINT, handler)
    return handler if isinstance(handler, _Cancelling) else None


def _in_ipython() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
