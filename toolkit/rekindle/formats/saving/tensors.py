"""Tensors to be written, computed piece by piece."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np

from rekindle.core.concurrency.progress import Progress, Report
from rekindle_kernels.blocks import Array, Bytes, FileArray, Tensor

_AT_ONCE: Final = 1 << 20
"""Numbers computed at a time, to keep temporary arrays small."""
FLOATS: Final = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
}
"""The names of dtypes in files."""


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written.

    Attributes:
        name: its name in the new file.
        shape: the shape of its numbers.
        form: the name of its numbers' form in the format of the file, such as "Q4_0" or "I32".
        size: its bytes.
        pieces: returns its bytes, piece by piece.
    """

    name: str
    shape: tuple[int, ...]
    form: str
    size: int
    pieces: Callable[[], Iterator[Array]]


def rows_at_once(inputs: int) -> int:
    """Return the number of rows to be computed at a time."""
    return max(1, _AT_ONCE // max(1, inputs))


def row_pieces(matrix: Tensor) -> Iterator[Array]:
    """Yield the rows of a tensor's last axis, (rows, inputs), some at a time."""
    if matrix.ndim == 3:
        for member in range(len(matrix)):
            yield from row_pieces(matrix[member])
        return
    step = rows_at_once(matrix.shape[-1])
    for first in range(0, len(matrix), step):
        yield np.asarray(matrix[first : first + step])


def float_dtype(tensor: Tensor) -> np.dtype[np.generic]:
    """Return the dtype of a tensor's numbers, to be written as they are: float32 for those of quantized blocks."""
    dtype: np.dtype[np.generic] = tensor.dtype if isinstance(tensor, np.ndarray | FileArray) else np.dtype(np.float32)
    return dtype if dtype in FLOATS else np.dtype(np.float32)


def of_floats(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], load: Callable[[], Tensor]) -> NewTensor:
    """Return a tensor of plain numbers of a dtype; `load` returns them while they are written."""

    def pieces() -> Iterator[Array]:
        tensor = load()
        if tensor.ndim < 2:
            yield np.asarray(tensor).astype(dtype)
        else:
            yield from (piece.astype(dtype) for piece in row_pieces(tensor))

    return NewTensor(name, shape, FLOATS[dtype], math.prod(shape) * dtype.itemsize, pieces)


def raw_bytes(piece: Array) -> Bytes:
    """Return the bytes of an array."""
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8)


class WrittenBytes:
    """Reports of written bytes.

    Args:
        stage: the name of the stage.
        total: the bytes in all.
        report: called after each piece; it may raise to end the writing.
    """

    def __init__(self, stage: str, total: int, report: Report):
        self._stage, self._total, self._report, self._done = stage, total, report, 0
        report(Progress(stage, 0, total))

    def add(self, count: int) -> None:
        """Count and report bytes."""
        self._done += count
        self._report(Progress(self._stage, self._done, self._total))
