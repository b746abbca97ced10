"""Work on daemon threads, and what a process that ends does about it.

The interpreter joins other threads before it calls a handler that could stop them. A daemon thread that comes back from
C++ into an interpreter that has ended is killed there before Python 3.14, and as its frames are XLA's, that aborts the
process. So an exit handler stops all work and waits for it: `EXIT_SECONDS`, and longer for the compiler alone, which
cannot be stopped; then it says so. Ctrl-C ends the process at once. Threads of a user's that are no daemons are
served until they are done, before all that.
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
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

EXIT_SECONDS = 10.0
"""How long a process that ends waits for work that goes on."""
LOOK_SECONDS = 0.05
"""How often it looks how far that is."""
WAITING = "rekindle: waiting for a compilation to finish before this process ends; Ctrl-C ends it now"
TOO_LATE = (
    "weights cannot be read any more, because the process is ending: its main thread is done. Do this before, or have "
    "it wait for the thread that does, as with thread.join()"
)


class Work(threading.Thread):
    """Begins at once; a process that ends waits for it.

    Args:
        work: must not raise.
        name: of the thread, after "rekindle-".
        stop: has it end soon, and returns at once; called when the process ends, perhaps more than once.
    """

    def __init__(self, work: Callable[[], None], name: str, stop: Callable[[], None] = lambda: None):
        super().__init__(target=work, name=f"rekindle-{name}", daemon=True)
        self.stop = stop
        _register()
        self.start()


def soon(work: Callable[[], T], name: str) -> "Future[T]":
    """Begin work on a thread of its own, and return at once."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Work(run, name)
    return future


class Doing:
    """Whether some thread does this just now: each does it `with doing: ...`."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._threads.discard(threading.get_ident())

    def __bool__(self) -> bool:
        return bool(self._threads)


compiling = Doing()
"""A process that ends waits for the compiler, however long it takes."""
storing = Doing()
"""Executors, which Orbax needs, are not closed meanwhile. Within it, first ask whether the process is `ending`."""
_closing = threading.Event()


def ending() -> bool:
    """Whether the interpreter is ending: then executors take no work, and nothing can be read or written any more."""
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
    """Not before the first work: what jax does at exit has to come after this."""
    atexit.register(_end)
    # Executors are closed long before `atexit`, by a function that is registered so too; there is no public way.
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
            for work in works:  # each time: what goes on may begin more before it has stopped
                work.stop()
            works[0].join(LOOK_SECONDS)
            now = monotonic()
            if compiling:
                since = now
                if now - began > EXIT_SECONDS and not said:
                    said = True
                    _say(WAITING)
            elif now - since > EXIT_SECONDS:
                return


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _works() -> list[Work]:
    """What goes on; in a process that was forked, nothing does. An interrupt may leave one that never began."""
    return [thread for thread in threading.enumerate() if isinstance(thread, Work) and thread.is_alive()]


@contextmanager
def _interruptible() -> Iterator[None]:
    """An exit handler's KeyboardInterrupt would be shown and then ignored: die of the signal, as without Python."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):
            sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
