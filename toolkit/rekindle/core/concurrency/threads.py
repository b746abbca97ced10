"""Work on daemon threads, which a process stops and waits for before it ends.

The interpreter joins other threads before it calls a handler that could stop them, so work needs daemon threads. Before
Python 3.14, a daemon thread that returns from C++ into an interpreter that has ended is killed, and since its frames
are XLA's, that aborts the process. So an exit handler stops all work and waits for it: for `EXIT_SECONDS`, and for the
compiler, which cannot be stopped, as long as it takes; then it says so. Ctrl-C ends the process at once. Threads of the
user that are not daemons are served until they are done, before all that.
"""

import atexit
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from time import monotonic, sleep
from typing import TypeVar

T = TypeVar("T")

EXIT_SECONDS = 10.0
"""How long a process that ends waits for work that still runs."""
LOOK_SECONDS = 0.05
"""How often it checks on that work."""
WAITING = "rekindle: waiting for a compilation to finish before this process ends; Ctrl-C ends it now"
TOO_LATE = (
    "weights can no longer be read, because the process is ending: its main thread is done. Read them before, or let "
    "the main thread wait for the thread that reads them, as with thread.join()"
)


class Work(threading.Thread):
    """A thread that begins at once, and that a process waits for before it ends.

    Args:
        work: the function to run, which must not raise.
        name: the thread's name after "rekindle-".
        stop: a function that makes the work end soon, and returns at once. It is called when the process ends, perhaps
            more than once.
    """

    def __init__(self, work: Callable[[], None], name: str, stop: Callable[[], None] = lambda: None):
        super().__init__(target=work, name=f"rekindle-{name}", daemon=True)
        self.stop = stop
        _register()
        self.start()


def soon(work: Callable[[], T], name: str) -> "Future[T]":
    """Begin work on a thread of its own, and return its future at once."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Work(run, name)
    return future


class Doing:
    """A kind of work, which is true while some thread does it in a block `with doing: ...`."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())

    def __exit__(self, *raised: object) -> None:
        self._threads.discard(threading.get_ident())

    def __bool__(self) -> bool:
        return bool(self._threads)


compiling = Doing()
"""Work of the compiler, which a process waits for before it ends, however long it takes."""
storing = Doing()
"""Work with executors, as Orbax needs them, which are not closed meanwhile. In the block, first check `ending`."""
_closing = threading.Event()


def ending() -> bool:
    """Return whether the interpreter is ending. Then executors take no work, and nothing can be read or written."""
    if _closing.is_set() or not threading.main_thread().is_alive():
        return True
    try:
        with ThreadPoolExecutor(1) as executor:
            executor.submit(int)
    except RuntimeError:
        return True
    return False


@cache
def _register() -> None:
    """Register the exit handlers with the first work, when jax has registered its own, which must run after them."""
    atexit.register(_end)
    # Executors are closed long before `atexit`, by a function that is registered in this way; there is no public one.
    getattr(threading, "_register_atexit", atexit.register)(_finish_storing)


def _finish_storing() -> None:
    _closing.set()
    latest = monotonic() + EXIT_SECONDS
    with _interruptible():
        while storing and _works() and monotonic() < latest:
            sleep(LOOK_SECONDS)


def _end() -> None:
    began = since = monotonic()
    said = False
    with _interruptible():
        while works := _works():
            for work in works:  # in each round, because work that was not stopped yet may begin more
                work.stop()
            works[0].join(LOOK_SECONDS)
            now = monotonic()
            if compiling:
                since = now
                if now - began > EXIT_SECONDS and not said and sys.stderr is not None:
                    said = True
                    sys.stderr.write(f"{WAITING}\n")
                    sys.stderr.flush()
            elif now - since > EXIT_SECONDS:
                return


def _works() -> list[Work]:
    """Return the work that still runs; a forked process has none. An interrupt may leave a thread that never began."""
    return [thread for thread in threading.enumerate() if isinstance(thread, Work) and thread.is_alive()]


@contextmanager
def _interruptible() -> Iterator[None]:
    """End the process by the signal if an exit handler is interrupted; Python would print the error and go on."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):
            sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
