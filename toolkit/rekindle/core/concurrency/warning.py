"""Warnings from any thread.

If the user turns warnings into errors, a warning outside of the main thread would end its thread, because nothing
catches it. It is printed instead, in the same form as an error that ended a thread.
"""

import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

FRAMES = 8
"""Most calls in the traceback of a user's function; the innermost calls are kept."""


_HELD: Final[ContextVar[list[str] | None]] = ContextVar("rekindle-held-warnings", default=None)


def warn(message: str, stacklevel: int = 2) -> None:
    """Give a RuntimeWarning, as `warnings.warn` does; it never ends a thread."""
    if (messages := _HELD.get()) is not None:
        messages.append(message)
        return
    with _without_end():
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)


@contextmanager
def hold(messages: list[str]) -> Iterator[None]:
    """Append the warnings of this thread to a list: the caller, on another thread, gives them at the user's line."""
    token = _HELD.set(messages)
    try:
        yield
    finally:
        _HELD.reset(token)


def warn_again(message: str, filename: str, line: int) -> None:
    """Give a RuntimeWarning about a line again; Python would print equal warnings only once per process."""
    with _without_end():
        warnings.warn_explicit(message, RuntimeWarning, filename, line)


def trace_of(error: BaseException, file: str) -> str:
    """Return the traceback of an error in a user's function, without the leading calls in `file`."""
    calls = error.__traceback__
    while calls is not None and calls.tb_frame.f_code.co_filename == file:
        calls = calls.tb_next
    return "".join(traceback.format_exception(type(error), error, calls, limit=-FRAMES)).rstrip()


@contextmanager
def _without_end() -> Iterator[None]:
    """Print a warning raised as an error, except in the main thread."""
    try:
        yield
    except RuntimeWarning as error:
        if threading.current_thread() is threading.main_thread():
            raise
        threading.excepthook(
            threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
        )
