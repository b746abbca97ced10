"""Pauses of Python's garbage collector while many long-lived objects are created."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_FEW: Final = 5_000
"""A number of new objects with a walk of less than a millisecond."""

_lock = threading.Lock()
_pauses = 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector in a block, in all threads. A pause by the user stays in effect.

    The collector walks through all objects whenever their number has grown by a quarter, a fifth of the time of
    importing rekindle. After a block with many new objects, all count as old, so that no walk over them
    follows.
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


def leave_out() -> None:
    """Leave all present objects out of later collections, for a process that serves from now on.

    A collection stops all threads. The objects of the imported libraries alone take a quarter of a second of each
    full collection, and large requests cause many.
    """
    gc.collect()
    gc.freeze()


def _count_as_old() -> None:
    """Move many new objects to the oldest generation, without a walk. Objects frozen by the user stay frozen.

    A count of frozen objects takes a tenth of a second in the process of a server.
    """
    if gc.get_count()[0] > _FEW and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
