"""Interrupts: which calls they end, also in cells under IPython in a terminal, and what they say."""

import asyncio
import signal
import sys
import threading
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rekindle.core.errors import AnyError, with_short_traceback


def brief(left: AnyError) -> AnyError:
    """Return an error that ends a wait; a cell shows an interrupt as it shows the errors of this package."""
    return with_short_traceback(left) if isinstance(left, KeyboardInterrupt | CancelledError) else left


def tell(left: BaseException, words: str, name: str, value: object) -> None:
    """Have an error that ends a wait say these words, and give it what had come; other errors than interrupts stay.

    It stays the error that it is, because event loops and timeout scopes know their cancellations by it.

    Args:
        left: a KeyboardInterrupt or asyncio's CancelledError, or any other.
        words: its message if it has none, else a note.
        name, value: an attribute that it gets.
    """
    if isinstance(left, KeyboardInterrupt | CancelledError):
        vars(left)[name] = value
        say(left, words)


def say(left: BaseException, words: str) -> None:
    """Have an error that ends a wait say these words, as `tell` does where there is nothing to give."""
    if not isinstance(left, KeyboardInterrupt | CancelledError):
        return
    if left.args:
        left.add_note(words)
    else:
        left.args = (words,)


class _Cancelling:
    """A signal handler that cancels the tasks which wait.

    Python's own raises KeyboardInterrupt out of the loop. Other owners of a loop then cancel its tasks, or end the
    process; IPython leaves them, and the requests that they wait for go on.

    Attributes:
        tasks: those that wait.
        heard: whether an interrupt came; the next one is Python's.
        alone: whether one task waited when it came.
    """

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.heard = self.alone = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.heard:
            signal.default_int_handler(number, frame)
        self.heard, self.alone = True, len(self.tasks) == 1
        for task in self.tasks:
            task.cancel()


@contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """End a task's wait at an interrupt, where IPython runs the loop and leaves interrupts to Python.

    Raises:
        KeyboardInterrupt: an interrupt came, and no other task waited.
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
        if not handler.alone:  # of several, the first that raised it would end the loop before the others are cancelled
            raise
        task.uncancel()
        raise KeyboardInterrupt from None
    finally:
        handler.tasks.remove(task)
        if not handler.tasks and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _handler() -> _Cancelling | None:
    """Return the handler of interrupts, which is installed for the first wait; None where others handle them."""
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
