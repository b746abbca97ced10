"""Matrices with one code a byte and scales: FP8 and int8 of any tool."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from rekindle.formats.checkpoints.huggingface.quantized.parts import tables
from rekindle.formats.checkpoints.huggingface.quantized.parts.grid import Grid
from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import (
    DTYPES,
    FLOATS,
    Floats,
    OnDemand,
    QuantizedTensor,
    Read,
    Stored,
    powers,
)
from rekindle_kernels.blocks import Array, FileArray
from rekindle_kernels.quantized import Codes, Quantized, Stack

TABLES: Final[Mapping[str, Floats]] = {"F8_E4M3": tables.E4M3, "F8_E5M2": tables.E5M2, "I8": tables.INT8}
POWERS: Final = ("U8", "F8_E8M0")
"""Dtypes of powers of two."""


def scaled(
    stored: Stored,
    name: str,
    scale: str,
    grid: Grid,
    scheme: str,
    *,
    dtype: np.dtype[Any] | None = None,
    zeros: str | None = None,
) -> QuantizedTensor:
    """Return the tensor `name`: codes times scales.

    Args:
        stored: the tensors.
        name: the stored name of the codes, (..., out, in) of a dtype of `TABLES`.
        scale: the stored name of the scales, (..., one for each rectangle of `grid`).
        grid: the rectangles of a matrix with one scale.
        scheme: the format, for users.
        dtype: the dtype of the numbers; None for the scales' own.
        zeros: the stored name of integers to subtract from the codes, in the shape of the scales; None for none.

    Raises:
        CheckpointError: a tensor is missing, or does not have its shape.
        UnsupportedModel: a tensor has another dtype.
    """
    shape, kind = stored.shape(name), stored.dtype(name)
    codes, scales = stored.on_demand(name, tuple(TABLES)), stored.read(scale, (*FLOATS, *POWERS))
    offsets = None if zeros is None else stored.read(zeros, ("I8",), stored.shape(scale))
    numbers = dtype or DTYPES.get(stored.dtype(scale), DTYPES["BF16"])
    load = partial(_load, codes, scales, offsets, TABLES[kind], grid, numbers)
    return QuantizedTensor(name, shape, (name, scale, *([zeros] if zeros else [])), load, scheme)


def _load(
    codes: OnDemand, scales: Read, zeros: Read | None, table: Floats, grid: Grid, dtype: np.dtype[Any]
) -> Quantized | Stack:
    data, factors = codes().view(np.uint8), _factors(scales())
    offsets = None if zeros is None else zeros()
    if data.ndim == 2:
        return _matrix(data, factors, offsets, table, grid, dtype)
    each = factors.reshape(len(data), -1)
    less = [None] * len(data) if offsets is None else offsets.reshape(len(data), -1)
    return Stack(tuple(_matrix(data[i], each[i], less[i], table, grid, dtype) for i in range(len(data))))


def _matrix(
    data: FileArray, scales: Array, zeros: Array | None, table: Floats, grid: Grid, dtype: np.dtype[Any]
) -> Quantized:
    count, inputs = data.shape

    def read(rows: slice) -> Codes:
        less = None if zeros is None else grid.scales(zeros, count, rows)
        return Codes(np.asarray(data[rows]), inputs, table, grid.columns, grid.scales(scales, count, rows), dtype, less)

    return Quantized(inputs, range(count), read)


def _factors(scales: Array) -> Array:
    """Return scales as numbers; bytes are exponents of two."""
    return powers(scales) if scales.dtype.itemsize == 1 else scales
