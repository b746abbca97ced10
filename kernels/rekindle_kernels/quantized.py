"""Quantized matrices with scales in arrays of their own, as stored in safetensors files.

A reader of a format yields rows as `Codes`: the stored bits, a table with the number of each code, and scales. Widening
them is the last step, done here by numpy and in C++ by the CPU implementation, with equal bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rekindle_kernels.blocks import Array, Bytes, Packed, Tensor

Floats = np.ndarray[Any, np.dtype[np.float32]]
Indices = np.ndarray[Any, np.dtype[np.integer[Any]]]

_NF4: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4: Final = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
TABLES: Final[dict[str, Floats]] = {
    "float4": np.array([*_E2M1, *(-number for number in _E2M1)], np.float32),
    "nf4": np.array(_NF4, np.float32),
    "fp4": np.array([*_FP4, *(-number for number in _FP4)], np.float32),
}
"""The numbers of codes of 4 bits that are not consecutive: E2M1, and NF4 and FP4 of bitsandbytes."""
_NUMBERS: Final = 1 << 20
"""Numbers widened at a time, to keep temporary arrays in the caches."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of a matrix, each number as a code: `(table[code] - zero) * scale + bias`, each step rounded to a dtype.

    Attributes:
        data: (rows, bytes) uint8: one code a byte, or two for codes of 4 bits, low bits first.
        inputs: the numbers of a row.
        table: (16,) or (256,) float32, the number of each code.
        group: the consecutive numbers of a row with one scale; the last group of a row may be smaller.
        scales: (rows, groups) float32.
        dtype: the dtype of the numbers, to which each step is rounded: float32, float16 or bfloat16.
        zeros: (rows, groups) float32 subtracted from the codes' numbers, or None.
        biases: (rows, groups) float32 added after the scale, or None.
        places: (inputs,), the group of each number of a row, if groups are not consecutive numbers (act-order), or
            None.
    """

    data: Bytes
    inputs: int
    table: Floats
    group: int
    scales: Floats
    dtype: np.dtype[Any]
    zeros: Floats | None = None
    biases: Floats | None = None
    places: Indices | None = None

    def one_by_one(self) -> "Codes":
        """Return the codes with a scale for each number, if groups are not consecutive numbers; else themselves."""
        if self.places is None:
            return self
        scales, zeros, biases = (
            None if a is None else a[:, self.places] for a in (self.scales, self.zeros, self.biases)
        )
        assert scales is not None, "codes have scales"
        return replace(self, group=1, scales=scales, zeros=zeros, biases=biases, places=None)

    def widen(self) -> Array:
        """Return the numbers, (rows, inputs), in their dtype."""
        numbers = np.empty((len(self.data), self.inputs), self.dtype)
        step = max(1, _NUMBERS // max(1, self.inputs))
        for first in range(0, len(numbers), step):
            some = slice(first, first + step)
            numbers[some] = self._numbers(some)
        return numbers

    def _numbers(self, rows: slice) -> Floats:
        data = self.data[rows]
        if len(self.table) == 16:
            pairs = np.empty((*data.shape, 2), np.uint8)
            np.bitwise_and(data, 15, out=pairs[..., 0])
            np.right_shift(data, 4, out=pairs[..., 1])
            data = pairs.reshape(len(data), -1)[:, : self.inputs]
        numbers = np.take(self.table, data)
        if self.zeros is not None:
            numbers -= self._spread(self.zeros[rows])
        numbers *= self._spread(self.scales[rows])
        if self.biases is None:
            return numbers
        return numbers.astype(self.dtype).astype(np.float32) + self._spread(self.biases[rows])

    def _spread(self, groups: Floats) -> Floats:
        """Return a number for each input, from one for each group."""
        if self.places is not None:
            return groups[:, self.places]
        return groups if groups.shape[1] == 1 else np.repeat(groups, self.group, axis=1)[:, : self.inputs]


@dataclass(frozen=True, slots=True)
class Quantized:
    """Matrix of a file, in a quantized format. `numpy.asarray` returns its numbers.

    Attributes:
        inputs: the numbers of a row.
        rows: the rows of this matrix in the stored one.
        reader: maps rows of the stored matrix to their codes, or to numbers.
    """

    inputs: int
    rows: range
    reader: Callable[[slice], "Codes | Array"]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return len(self.rows), self.inputs

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return 2

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: int | slice) -> "Quantized":
        """Return some consecutive rows."""
        assert isinstance(rows, slice), "a row is taken as a slice of rows"
        return replace(self, rows=self.rows[rows])

    def codes(self) -> "Codes | Array":
        """Return the rows as stored, or numbers if the format has no codes with scales."""
        return self.reader(slice(self.rows.start, self.rows.stop))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        codes = self.codes()
        return _numbers(codes.widen() if isinstance(codes, Codes) else codes, dtype, copy)


@dataclass(frozen=True, slots=True)
class Stack:
    """Equal tensors as one, with one more first axis.

    Attributes:
        members: at least one tensor.
    """

    members: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return len(self.members), *self.members[0].shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, rows: int | slice) -> Any:
        """Return a member, or a stack of some."""
        return Stack(self.members[rows]) if isinstance(rows, slice) else self.members[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return _numbers(np.stack([np.asarray(member) for member in self.members]), dtype, copy)


@dataclass(frozen=True, slots=True)
class Turned:
    """Transposed matrix.

    Attributes:
        T: the matrix as stored.
    """

    T: Packed

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return self.T.shape[::-1]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice) -> Packed:
        """Refuse, because the rows are columns of the stored matrix."""
        raise TypeError("a transposed matrix is read whole, or as its T")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return _numbers(np.asarray(self.T).T, dtype, copy)


def _numbers(numbers: Array, dtype: Any, copy: bool | None) -> Array:
    if copy is False:
        raise ValueError("numbers of quantized tensors are always copied")
    return numbers if dtype is None else numbers.astype(dtype, copy=False)
