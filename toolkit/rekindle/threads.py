"""Work on daemon threads: a kernel shuts down without waiting for them, as it would for those of an executor."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def soon(work: Callable[[], T], name: str) -> "Future[T]":
    """Begin work on a thread of its own, and return at once."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=f"rekindle-{name}", daemon=True).start()
    return future


def lower_priority() -> None:
    """Let the calling thread run behind all others from now on, where the system can tell threads apart."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
