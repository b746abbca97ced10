"""Work on daemon threads: a kernel shuts down without waiting for them, as it would for those of an executor."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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


def ending() -> bool:
    """Whether the interpreter is ending: then executors take no work, and nothing can be read or written any more."""
    if not threading.main_thread().is_alive():
        return True
    try:
        with ThreadPoolExecutor(1) as executor:
            executor.submit(int)
    except RuntimeError:
        return True
    return False
