"""The costs of hostile inputs: CPU time of each one, and memory kept after all."""

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Final

MOST_SECONDS: Final = 5.0
"""CPU seconds of one input: five times what is promised, for slow machines. Waits for a busy machine do not count."""
MOST_GROWTH: Final = 64 << 20
"""Bytes kept after thousands of inputs."""


def memory() -> int:
    """Return the bytes of memory of this process, without garbage and the allocator's reserve."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Costs:
    """The costs of inputs, one after the other.

    Args:
        warm_up: the number of inputs before memory may not grow any more.

    Attributes:
        slowest: the most CPU seconds of an input, with its name.
    """

    def __init__(self, warm_up: int):
        self.slowest = (0.0, "")
        self._warm_up, self._count, self._before = warm_up, 0, 0

    @contextmanager
    def of(self, name: object) -> Iterator[None]:
        """Measure the judgement of an input during a block."""
        start = process_time()
        yield
        self.slowest = max(self.slowest, (process_time() - start, str(name)))
        self._count += 1
        if self._count == self._warm_up:
            self._before = memory()

    def check(self) -> None:
        """Check that each input was judged soon, and that the memory for them came back."""
        assert self._count > self._warm_up
        assert self.slowest[0] < MOST_SECONDS, self.slowest
        assert (growth := memory() - self._before) < MOST_GROWTH, f"{self._count} inputs keep {growth:,} bytes"
