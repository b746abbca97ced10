"""Work on daemon threads, stopped and joined before the process ends.

The interpreter joins other threads before any handler could stop them, so work needs daemon threads. Before Python
3.14, a daemon thread returning from C++ into an ended interpreter is killed; since its frames are XLA's, the process
aborts. An exit handler therefore stops all work and joins it within `EXIT_SECONDS`. The compiler cannot be stopped: the
handler waits for it without a limit and prints a notice. Ctrl-C ends the process at once. Before all this, Python waits
for the user's non-daemon threads, and the session serves them until they are done.
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
"""Longest wait for running work at the end of the process."""
NOTICE_SECONDS = 1.0
"""Wait for the compiler at the end of the process without a notice."""
LOOK_SECONDS = 0.05
"""Interval between two checks on running work."""
STACK_BYTES = 256 << 20
"""Size of a deep stack. Only the pages in use take memory."""
_stack_size = threading.Lock()
WAITING = "rekindle: waiting for a compilation, which the next start would repeat; Ctrl-C ends it now"
TOO_LATE = (
    "weights can no longer be read, because the process is ending: its main thread is done. Read them before, or let "
    "the main thread wait for the thread that reads them, as with thread.join()"
)


class Work(threading.Thread):
    """A thread that starts at once and is joined at the end of the process.

    Args:
        work: function to run; it must not raise.
        name: name of the thread, after "rekindle-".
        stop: function that asks the work to end soon and returns at once. It is called at the end of the process,
            possibly more than once.
    """

    def __init__(self, work: Callable[[], None], name: str, stop: Callable[[], None] = lambda: None):
        super().__init__(target=work, name=f"rekindle-{name}", daemon=True)
        self.stop = stop
        _register()
        self.start()


def soon(work: Callable[[], T], name: str) -> "Future[T]":
    """Start work on a new thread, and return its future at once."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Work(run, name)
    return future


def on_deep_stack(work: Callable[[], T]) -> T:
    """Run work on a thread with a stack of `STACK_BYTES`, wait for it, and return its result; it raises as `work`.

    Parsers whose recursion follows their input need it: other stacks have at most 8 MiB, by the platform.
    """
    with _stack_size:  # the size belongs to the process; other threads started meanwhile have a larger stack
        size = threading.stack_size(STACK_BYTES)
        try:
            future = soon(work, "deep-stack")
        finally:
            threading.stack_size(size)
    return future.result()


class Doing:
    """A flag for one kind of work: true while any thread is in a block `with flag: ...`."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    def __enter__(self) -> None:
        self._threads.add(threading.get_ident())

    def __exit__(self, *raised: object) -> None:
        self._threads.discard(threading.get_ident())

    def __bool__(self) -> bool:
        return bool(self._threads)


compiling = Doing()
"""Compiler work; the end of the process waits for it without a limit."""
storing = Doing()
"""Work with executors, needed by Orbax; they stay open during this work. In the block, check `ending` first."""
_closing = threading.Event()


def ending() -> bool:
    """Return True if the interpreter is ending. Executors then take no work, so no file can be read or written."""
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
    """Register the exit handlers at the first work, after jax has registered its own, so that they run first."""
    atexit.register(_end)
    # Python closes executors long before `atexit`, by a function registered in this private way.
    getattr(threading, "_register_atexit", atexit.register)(_finish_storing)


def _finish_storing() -> None:
    _closing.set()
    latest = monotonic() + EXIT_SECONDS
    with _interruptible():
        while storing and _works() and monotonic() < latest:
            sleep(LOOK_SECONDS)


def _end() -> None:
    began = since = monotonic()
    notified = False
    with _interruptible():
        while works := _works():
            for work in works:  # in each round, because unstopped work may begin more
                work.stop()
            works[0].join(LOOK_SECONDS)
            now = monotonic()
            if compiling:
                since = now
                if now - began > NOTICE_SECONDS and not notified and sys.stderr is not None:
                    notified = True
                    sys.stderr.write(f"{WAITING}\n")
                    sys.stderr.flush()
            elif now - since > EXIT_SECONDS:
                return


def _works() -> list[Work]:
    """Return the running work; a forked process has none. After an interrupt, a thread may never have started."""
    return [thread for thread in threading.enumerate() if isinstance(thread, Work) and thread.is_alive()]


@contextmanager
def _interruptible() -> Iterator[None]:
    """End the process by the signal at an interrupt of an exit handler; Python would print the error and go on."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):
            sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
