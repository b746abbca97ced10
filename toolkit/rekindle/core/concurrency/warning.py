"""Warnings that any thread may give.

Where warnings are errors, there is nobody to catch one that another thread than the main one raises, and it would end
that thread. It is printed then, as an error that ended a thread is.
"""

import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

FRAMES = 8
"""The most calls that the traceback of a user's function shows, the innermost ones."""


def warn(message: str, stacklevel: int = 2) -> None:
    """Warn, as `warnings.warn` does, of what stops nothing."""
    with _without_end():
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)


def warn_again(message: str, filename: str, line: int) -> None:
    """Warn of a line, also if the same was said of it before. Python would say that only once in a process."""
    with _without_end():
        warnings.warn_explicit(message, RuntimeWarning, filename, line)


def trace_of(error: Exception, file: str) -> str:
    """Return the traceback of an error in a user's function, without the calls in the file that led to it."""
    calls = error.__traceback__
    while calls is not None and calls.tb_frame.f_code.co_filename == file:
        calls = calls.tb_next
    return "".join(traceback.format_exception(type(error), error, calls, limit=-FRAMES)).rstrip()


@contextmanager
def _without_end() -> Iterator[None]:
    """Print a warning that is an error, unless this is the main thread."""
    try:
        yield
    except RuntimeWarning as error:
        if threading.current_thread() is threading.main_thread():
            raise
        threading.excepthook(
            threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
        )
