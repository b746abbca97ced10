"""How much memory some code keeps, from which follows what its next call costs at most."""

import tracemalloc
from collections.abc import Callable
from types import ModuleType

DEPTH = 9
"""How many callers of an allocation are looked at for the module."""


def kept_bytes(module: ModuleType, call: Callable[[], object]) -> int:
    """Return how many more bytes that a module has allocated, itself or by what it calls, are kept after a call."""
    assert module.__file__ is not None
    own = tracemalloc.Filter(True, module.__file__, all_frames=True)
    tracemalloc.start(DEPTH)
    try:
        call()
        kept = tracemalloc.take_snapshot().filter_traces([own])
    finally:
        tracemalloc.stop()
    return sum(trace.size for trace in kept.traces)
