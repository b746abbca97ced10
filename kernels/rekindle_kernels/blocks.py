"""Tensors with numbers read or computed on demand, and quantized blocks, as stored in GGUF files."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Packed(Protocol):
    """A tensor with numbers read or computed on demand, by `numpy.asarray`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: int | slice, /) -> "Packed":
        """Return a view of rows along the first axis of at least two."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array: ...


@dataclass(frozen=True, slots=True)
class FileArray:
    """Array in a file. `numpy.asarray` reads it, each time.

    Attributes:
        shape: the shape.
        dtype: the dtype.
        begin: the position of its first byte.
        reader: returns the bytes of a position and a size; thread-safe.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begin: int
    reader: Callable[[int, int], Bytes]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice) -> "FileArray":
        """Return the array at an index of the first axis, or at consecutive ones."""
        row = self.nbytes // max(1, len(self))
        if not isinstance(rows, slice):
            return replace(self, shape=self.shape[1:], begin=self.begin + row * range(len(self))[rows])
        some = range(len(self))[rows]
        assert some.step == 1, "rows of a file are read in order"
        return replace(self, shape=(len(some), *self.shape[1:]), begin=self.begin + row * some.start)

    def reshape(self, *shape: int) -> "FileArray":
        """Return the array in another shape; -1 for the size that is left."""
        others = math.prod(size for size in shape if size >= 0)
        sizes = tuple(math.prod(self.shape) // max(1, others) if size < 0 else size for size in shape)
        assert math.prod(sizes) == math.prod(self.shape), f"{self.shape} cannot be {shape}"
        return replace(self, shape=sizes)

    def view(self, dtype: Any) -> "FileArray":
        """Return the same bytes as numbers of another dtype, along the last axis."""
        to = np.dtype(dtype)
        return replace(self, shape=(*self.shape[:-1], self.shape[-1] * self.dtype.itemsize // to.itemsize), dtype=to)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("numbers in a file are always copied")
        numbers = self.reader(self.begin, self.nbytes).view(self.dtype).reshape(self.shape)
        return numbers if dtype is None else numbers.astype(dtype, copy=False)


@dataclass(frozen=True, slots=True)
class ReorderedRows:
    """Rows of an array in a file in another order. `numpy.asarray` reads them, each time.

    Attributes:
        stored: the array in the file.
        order: (rows,), the index of each row there.
    """

    stored: FileArray
    order: np.ndarray[Any, np.dtype[np.integer[Any]]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return (len(self.order), *self.stored.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.stored.ndim

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, rows: int | slice) -> "ReorderedRows | FileArray":
        """Return a row, or some of the rows, unread."""
        return replace(self, order=self.order[rows]) if isinstance(rows, slice) else self.stored[int(self.order[rows])]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if not len(self.order):
            return np.asarray(self.stored[:0], dtype)
        first, last = int(self.order.min()), int(self.order.max()) + 1
        some: Array = np.asarray(self.stored[first:last], dtype)[self.order - first]
        return some


@dataclass(frozen=True, slots=True)
class Kind:
    """A format of quantized blocks.

    Attributes:
        name: the name in ggml, such as "Q4_1".
        numbers: the numbers per block.
        size: the bytes per block.
        dequantize: maps (bytes,) of whole blocks to (numbers,): a view for floats, else a new array, in bfloat16 if it
            is exact for the format, else in float32.
        factor: a number of the file by which `dequantize` multiplies all numbers.
    """

    name: str
    numbers: int
    size: int
    dequantize: Callable[[Bytes], Array]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Blocks:
    """Array of quantized blocks along its last axis. `numpy.asarray` dequantizes it.

    Attributes:
        data: (..., bytes) uint8, whole blocks.
        kind: the format of the blocks.
    """

    data: Bytes | FileArray | ReorderedRows
    kind: Kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return *self.data.shape[:-1], self.data.shape[-1] // self.kind.size * self.kind.numbers

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.data.ndim

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: int | slice) -> "Blocks":
        """Return a view of rows along the first axis of at least two."""
        assert self.ndim > 1, "a block cannot be split"
        return replace(self, data=self.data[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("numbers in blocks are always copied")
        numbers = self.kind.dequantize(np.ascontiguousarray(self.data).reshape(-1)).reshape(self.shape)
        return numbers if dtype is None else numbers.astype(dtype, copy=False)


Tensor = Array | Packed
"""A tensor of a file. `numpy.asarray` returns its numbers."""
