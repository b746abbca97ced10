"""Copying tensors out of files with little memory: so many at once, piece by piece, and none stays mapped."""

import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array, Blocks, Tensor
from rekindle_kernels.layers import pack, packed

PIECE_BYTES: Final = 16 << 20
"""The size of a piece of a matrix, in the form that it is copied into."""
PIECE_ROWS: Final = 256
"""The rows of a piece are a multiple of this, which every form of a matrix can be cut at."""


class Room:
    """Room for so many bytes, which threads take and give back."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Take room in a block, after a wait until there is enough; no size may be above the capacity."""
        assert size <= self.capacity, f"{size} bytes never fit into {self.capacity}"
        with self._changed:
            self._changed.wait_for(lambda: self._taken + size <= self.capacity)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


def copy_into(parts: Sequence[Tensor], into: Array, implementation: Implementation) -> None:
    """Join matrices along their outputs in the form in which an implementation reads them, as `pack` does.

    What was copied is no longer mapped, if the matrices are views of a file, so that its pages do not count to the
    memory of this process.
    """
    rows, inputs = sum(map(len, parts)), parts[0].shape[1]
    step = max(1, PIECE_BYTES // (PIECE_ROWS * inputs * into.itemsize)) * PIECE_ROWS
    piece = packed((step, inputs), into.dtype, implementation=implementation).shape
    if piece[1:] != into.shape[1:]:  # the form does not go row by row
        pack(parts, into, implementation=implementation)
        release(parts)
        return
    for place, first in enumerate(range(0, rows, step)):
        rows_of = between(parts, first, first + step)
        pack(rows_of, into[place * piece[0] : (place + 1) * piece[0]], implementation=implementation)
        release(rows_of)


def between(parts: Sequence[Tensor], first: int, last: int) -> list[Tensor]:
    """Return rows `first` to `last` of matrices that lie one behind the other, as views."""
    found: list[Tensor] = []
    start = 0
    for part in parts:
        rows = part[max(0, first - start) : max(0, last - start)]
        if len(rows):
            found.append(rows)
        start += len(part)
    return found


def release(arrays: Sequence[Tensor]) -> None:
    """Unmap the memory of arrays that are views of a file, where the system can. They are read again when needed."""
    for stored in arrays:
        array = stored.data if isinstance(stored, Blocks) else stored
        base: Any = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        mapped = isinstance(base, mmap.mmap) and hasattr(base, "madvise") and array.flags.c_contiguous
        if mapped and memoryview(base).readonly:  # what could be written to would lose what it holds
            offset = _address(array) - _address(np.frombuffer(base, np.uint8))
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
            base.madvise(mmap.MADV_DONTNEED, start, offset + array.nbytes - start)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
