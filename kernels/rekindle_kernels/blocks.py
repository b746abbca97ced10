"""Numbers in quantized blocks, as files hold them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of numbers.

    Attributes:
        name: in ggml, such as "Q4_1".
        numbers: in a block.
        size: of a block, in bytes.
        read: maps the (bytes,) of whole blocks to (numbers,): a view for floats, a new array for other kinds, which is
            bfloat16 where that holds all numbers of the kind, else float32.
    """

    name: str
    numbers: int
    size: int
    read: Callable[[Bytes], Array]


@dataclass(frozen=True, slots=True)
class Blocks:
    """An array whose numbers are in blocks along its last axis. `numpy.asarray` reads them.

    Attributes:
        data: (..., bytes) uint8, whole blocks.
        kind: of the blocks.
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
        """Return a part along the first axis, which is not the last too, as a view."""
        assert self.ndim > 1, "a block is not parted"
        return replace(self, data=self.data[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("numbers in blocks are always copied")
        numbers = self.kind.read(np.ascontiguousarray(self.data).reshape(-1)).reshape(self.shape)
        return numbers if dtype is None else numbers.astype(dtype, copy=False)


Tensor = Array | Blocks
"""A tensor of a file. `numpy.asarray` gives its numbers."""
