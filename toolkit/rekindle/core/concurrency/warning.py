"""Warnings that any thread may give.

Where warnings are errors, there is nobody to catch one that another thread than the main one raises, and it would end
that thread. It is printed then, as an error that ended a thread is.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def warn(message: str, stacklevel: int = 2) -> None:
    """Warn, as `warnings.warn` does, of what stops nothing."""
    with _without_end():
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)


def warn_again(message: str, filename: str, line: int) -> None:
    """Warn of a line, also if the same was said of it before. Python would say that only once in a process."""
    with _without_end():
        warnings.warn_explicit(message, RuntimeWarning, filename, line)


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
