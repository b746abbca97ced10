"""Copying tensors out of files with little memory: under a byte budget, piece by piece."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from rekindle.core.device.jax_settings import with_overrides
from rekindle_kernels.api import Implementation
from rekindle_kernels.blocks import Array, Tensor
from rekindle_kernels.layers import pack, packed

PIECE_BYTES: Final = 2 << 20
"""The target size of a piece of a matrix, in packed form: what is read from a file stays in the caches."""
SIGNLESS: Final = np.uint16(0x7FFF)
INFINITY: Final = np.uint16(0x7C00)
"""The bits of a float16 number without its sign, and those of infinity."""
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
    """Join matrices along their outputs into an implementation's packed form, as `pack` does."""
    rows, inputs = sum(map(len, parts)), parts[0].shape[1]
    step = max(1, PIECE_BYTES // (PIECE_ROWS * inputs * into.itemsize)) * PIECE_ROWS
    piece = packed((step, inputs), into.dtype, implementation=implementation).shape
    if piece[1:] != into.shape[1:]:  # the packed form cannot be split by rows
        _pack(parts, into, implementation)
        return
    for index, first in enumerate(range(0, rows, step)):
        views = between(parts, first, first + step)
        _pack(views, into[index * piece[0] : (index + 1) * piece[0]], implementation)


def _pack(parts: Sequence[Tensor], into: Array, implementation: Implementation) -> None:
    with np.errstate(over="ignore"):  # numbers beyond the range of float16 are counted later
        pack(parts, into, implementation=implementation)


def infinities(numbers: Array | jax.Array) -> int:
    """Return the number of infinities in a float16 array."""
    if isinstance(numbers, jax.Array):
        return int(with_overrides(lambda: jnp.isinf(numbers).sum()))
    bits, step = numbers.reshape(-1).view(np.uint16), PIECE_BYTES // 2
    pieces = (bits[first : first + step] & SIGNLESS for first in range(0, bits.size, step))
    return sum(int(np.count_nonzero(piece == INFINITY)) for piece in pieces)


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
