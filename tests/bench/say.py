"""Print progress lines: the current work, and a sign of life while it goes on."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_START = time.monotonic()
BEAT_S = 15.0


def say(text: str) -> None:
    """Print a line with the seconds since the bench began."""
    print(f"[{time.monotonic() - _START:6.1f}s] {text}", flush=True)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Print the name of some work, and again every few seconds until its end."""
    say(what)
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_S):
            say(f"  still: {what}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
