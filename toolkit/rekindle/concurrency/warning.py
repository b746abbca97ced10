"""Warnings that any thread may give."""

import threading
import warnings


def warn(message: str, stacklevel: int = 2) -> None:
    """Warn, as `warnings.warn` does, of what stops nothing.

    Where warnings are errors, there is nobody to catch one that another thread than the main one raises, and it would
    end that thread. It is printed then, as an error that ended a thread is.
    """
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning as error:
        if threading.current_thread() is threading.main_thread():
            raise
        threading.excepthook(
            threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
        )
