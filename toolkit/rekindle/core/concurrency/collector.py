"""Python's garbage collector: pauses while many long-lived objects are created, and short walks while engines work."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


class OldObjects:
    """Old objects of this process, which full collections leave out while an engine is busy.

    A full collection walks through a quarter of a million objects in a notebook, and all threads wait. Python starts
    several while a cache fills. With a busy engine, a full collection walks through the objects since the last one.
    With idle engines, as at most calls of `gc.collect()`, it walks through all objects. So does the first one after
    the memory blocks of the process have doubled. The thresholds stay the same.
    """

    def __init__(self) -> None:
        self.engines: tuple[Callable[[], bool], ...] = ()
        self._blocks = 0  # memory blocks at the last walk through all objects
        self._walks_all = True

    @contextmanager
    def left_out(self, busy: Callable[[], bool]) -> Iterator[None]:
        """Leave old objects out of collections while a block runs. Objects frozen by the user stay frozen.

        Args:
            busy: returns True while the block's engine has work. Called in any thread, and takes no lock.
        """
        with _lock:
            takes_part = bool(self.engines) or not gc.get_freeze_count()
            if takes_part and not self.engines:
                self._blocks = sys.getallocatedblocks()
                gc.callbacks.append(self._turn)
                gc.freeze()
            if takes_part:
                self.engines = (*self.engines, busy)
        try:
            yield
        finally:
            if takes_part:
                with _lock:
                    self.engines = tuple(each for each in self.engines if each is not busy)
                    if not self.engines:
                        with suppress(ValueError):  # others may have cleared the list
                            gc.callbacks.remove(self._turn)
                        gc.unfreeze()

    def _turn(self, phase: str, info: dict[str, int]) -> None:
        """Prepare a full collection, or leave out its survivors. The collector calls this between any two lines."""
        if info["generation"] < 2 or not self.engines:
            return
        if phase == "start":
            has_doubled = sys.getallocatedblocks() > 2 * self._blocks
            self._walks_all = has_doubled or not any(busy() for busy in self.engines)
            if self._walks_all:
                gc.unfreeze()
            return
        gc.freeze()
        if self._walks_all:
            self._blocks = sys.getallocatedblocks()


OLD_OBJECTS: Final = OldObjects()
"""The old objects of this process, which has one collector for all engines."""


def _count_as_old() -> None:
    """Move many new objects to the oldest generation, without a walk. Objects frozen by the user stay frozen.

    A count of frozen objects is a walk.
    """
    if gc.get_count()[0] <= _FEW:
        return
    if OLD_OBJECTS.engines:
        gc.freeze()
    elif not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
