"""Copying tensors out of files with little memory: under a byte budget, piece by piece, and unmapped afterwards."""

import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array, Tensor
from rekindle_kernels.layers import pack, packed

PIECE_BYTES: Final = 16 << 20
"""The target size of a piece of a matrix, in packed form."""
PIECE_ROWS: Final = 256
"""Rows of a piece are a multiple of this number: every packed form can be split there."""


class ByteBudget:
    """Budget of bytes in use at one time, shared by threads."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._in_use = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve bytes within a `with` block, waiting until enough are free; `size` must not exceed the capacity."""
        assert size <= self.capacity, f"{size} bytes never fit into {self.capacity}"
        with self._changed:
            self._changed.wait_for(lambda: self._in_use + size <= self.capacity)
            self._in_use += size
        try:
            yield
        finally:
            with self._changed:
                self._in_use -= size
                self._changed.notify_all()


def copy_into(parts: Sequence[Tensor], into: Array, implementation: Implementation) -> None:
    """Join matrices along their outputs into an implementation's packed form, as `pack` does.

    Copied parts of a mapped file are unmapped, so that its pages do not count towards this process's memory.
    """
    rows, inputs = sum(map(len, parts)), parts[0].shape[1]
    step = max(1, PIECE_BYTES // (PIECE_ROWS * inputs * into.itemsize)) * PIECE_ROWS
    piece = packed((step, inputs), into.dtype, implementation=implementation).shape
    if piece[1:] != into.shape[1:]:  # the packed form cannot be split by rows
        pack(parts, into, implementation=implementation)
        release(parts)
        return
    for index, first in enumerate(range(0, rows, step)):
        views = between(parts, first, first + step)
        pack(views, into[index * piece[0] : (index + 1) * piece[0]], implementation=implementation)
        release(views)


def between(parts: Sequence[Tensor], first: int, last: int) -> list[Tensor]:
    """Return views of rows `first` to `last` of concatenated matrices."""
    views: list[Tensor] = []
    start = 0
    for part in parts:
        rows = part[max(0, first - start) : max(0, last - start)]
        if len(rows):
            views.append(rows)
        start += len(part)
    return views


def release(arrays: Sequence[Tensor]) -> None:
    """Drop the cached memory of arrays in mapped files, if the system can. A later access reads the file again."""
    for array in (each for tensor in arrays for each in _stored(tensor)):
        base: Any = array
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        mapped = isinstance(base, mmap.mmap) and hasattr(base, "madvise") and array.flags.c_contiguous
        if mapped and memoryview(base).readonly:  # a writable mapping would lose its changes
            offset = _address(array) - _address(np.frombuffer(base, np.uint8))
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
            base.madvise(mmap.MADV_DONTNEED, start, offset + array.nbytes - start)


def _stored(tensor: Tensor) -> Sequence[Array]:
    return [tensor] if isinstance(tensor, np.ndarray) else tensor.stored()


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
