"""Python's garbage collector, paused while much is made that stays."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_pauses = 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector in a block, in all threads. Where the user paused it, leave it so.

    It walks through all objects whenever there are a quarter more of them, which took a fifth of the time of importing
    rekindle. After the block all objects count as old, so that none of them is walked through at once.
    """
    global _pauses
    with _lock:
        paused = _pauses > 0 or gc.isenabled()
        _pauses += paused
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= paused
            if paused and not _pauses:
                _count_as_old()
                gc.enable()


def _count_as_old() -> None:
    """Move all objects to the oldest generation, which costs no walk. What the user has frozen stays frozen."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
