"""Tensors with numbers computed on demand, and quantized blocks, as stored in GGUF files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Packed(Protocol):
    """A tensor with numbers computed on demand, by `numpy.asarray`."""

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

    def stored(self) -> Sequence[Array]:
        """Return the arrays with only these numbers: views of a file, unmapped after a copy."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A format of quantized blocks.

    Attributes:
        name: the name in ggml, such as "Q4_1".
        numbers: the numbers per block.
        size: the bytes per block.
        dequantize: maps (bytes,) of whole blocks to (numbers,): a view for floats, else a new array, in bfloat16 if it
            is exact for the format, else in float32.
    """

    name: str
    numbers: int
    size: int
    dequantize: Callable[[Bytes], Array]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Array of quantized blocks along its last axis. `numpy.asarray` dequantizes it.

    Attributes:
        data: (..., bytes) uint8, whole blocks.
        kind: the format of the blocks.
    """

    data: Bytes
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

    def stored(self) -> Sequence[Array]:
        """Return the arrays with only these numbers."""
        return (self.data,)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("numbers in blocks are always copied")
        numbers = self.kind.dequantize(np.ascontiguousarray(self.data).reshape(-1)).reshape(self.shape)
        return numbers if dtype is None else numbers.astype(dtype, copy=False)


Tensor = Array | Packed
"""A tensor of a file. `numpy.asarray` returns its numbers."""
