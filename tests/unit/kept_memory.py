"""The memory kept by some code, a bound of its next call's cost."""

import tracemalloc
from collections.abc import Callable
from types import ModuleType

DEPTH = 9
"""The number of callers of an allocation to search for the module."""


def kept_bytes(module: ModuleType, call: Callable[[], object]) -> int:
    """Return the number of bytes allocated by a module or its callees, and kept after a call."""
    assert module.__file__ is not None
    own = tracemalloc.Filter(True, module.__file__, all_frames=True)
    tracemalloc.start(DEPTH)
    try:
        call()
        snapshot = tracemalloc.take_snapshot().filter_traces([own])
    finally:
        tracemalloc.stop()
    return sum(trace.size for trace in snapshot.traces)
