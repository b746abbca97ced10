"""Quantization of a matrix of floats, by numpy: codes of 4 or 8 bits around zero, with a scale for each group."""

from typing import Any, Final

import numpy as np

from rekindle_kernels.blocks import Array
from rekindle_kernels.storage import BlockRows, layout_of

Floats = np.ndarray[Any, np.dtype[np.float32]]

PARTS: Final = (1.0, 0.9, 0.8)
"""Largest numbers tried for codes of 4 bits, by the largest of the group: the others are rounded to the last code.

The best of three has 0.95 of the error of the first alone, for normally distributed numbers, and of seven 0.94.
"""

TINY: Final = np.float32(1e-37)
"""Smaller scales have no finite inverse: their codes are 0."""
LARGEST_HALF: Final = np.float32(65504)
"""The largest number of float16."""


def encode(numbers: Array, kind: str) -> BlockRows:
    """Return the numbers as codes with the least squared error among some scales.

    Scales are numbers of float16, as in files of llama.cpp, unless they are larger than all of these. A group with a
    number that is not finite has the scale NaN.

    Args:
        numbers: (rows, inputs) of any floating dtype, whole groups.
        kind: "int8:N" or "int4:N", with N numbers in a group.

    Raises:
        ValueError: the kind is another, or the groups are not whole.
    """
    name, _, rest = kind.partition(":")
    group = layout_of(kind).numbers
    if name not in ("int4", "int8") or ":" in rest or numbers.shape[1] % group:
        raise ValueError(f'numbers are encoded as "int4:N" or "int8:N" in groups of N, not {numbers.shape} as "{kind}"')
    groups: Floats = np.ascontiguousarray(numbers, np.float32).reshape(len(numbers), -1, group)
    is_finite = np.isfinite(groups).all(-1, keepdims=True)
    groups = np.where(is_finite, groups, np.float32(0))
    codes, scales = _four_bits(groups) if name == "int4" else _eight_bits(groups)
    header = np.where(is_finite, scales, np.float32(np.nan)).astype(np.float32).view(np.uint8)
    if name == "int4":
        nibbles = (codes + np.int8(8)).view(np.uint8)
        body = nibbles[..., ::2] | nibbles[..., 1::2] << np.uint8(4)
    else:
        body = codes.view(np.uint8)
    return BlockRows(kind, np.concatenate([header, body], axis=-1).reshape(len(numbers), -1))


def _eight_bits(groups: Floats) -> tuple[Array, Floats]:
    """Return the codes of groups, from -127 to 127, and their scales."""
    scales = _in_half(np.abs(groups).max(-1, keepdims=True) / np.float32(127))
    return _rounded(groups, scales, -127, 127), scales


def _four_bits(groups: Floats) -> tuple[Array, Floats]:
    """Return the codes of groups, from -8 to 7, and their scales.

    The scale's sign gives the code -8 to the number with the largest magnitude. Each choice of codes has its own best
    scale, by least squares.
    """
    largest = np.take_along_axis(groups, np.abs(groups).argmax(-1, keepdims=True), -1)
    best, scales = np.zeros(groups.shape, np.int8), np.zeros_like(largest)
    errors = np.full_like(largest, np.inf)
    for part in PARTS:
        codes = _rounded(groups, largest * np.float32(part / -8), -8, 7)
        squares = np.einsum("rgi,rgi->rg", codes, codes, dtype=np.float32)[..., None]
        products = np.einsum("rgi,rgi->rg", codes, groups, dtype=np.float32)[..., None]
        scale = _in_half(np.divide(products, squares, out=np.zeros_like(products), where=squares > 0))
        # The error is |numbers|^2 more than this.
        error = (squares * scale - 2 * products) * scale
        is_better = error < errors
        best, scales = np.where(is_better, codes, best), np.where(is_better, scale, scales)
        errors = np.where(is_better, error, errors)
    return best, scales


def _in_half(scales: Floats) -> Floats:
    """Return the scales as the nearest numbers of float16; scales beyond its largest number as they are."""
    is_large = np.abs(scales) > LARGEST_HALF
    halves = np.where(is_large, np.float32(0), scales).astype(np.float16).astype(np.float32)
    return np.where(is_large, scales, halves)


def _rounded(groups: Floats, scales: Floats, least: int, most: int) -> Array:
    """Return the nearest integers to the numbers by their scale, int8; 0 for a scale of 0."""
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=np.abs(scales) > TINY)
    return np.clip(np.rint(groups * inverse), least, most).astype(np.int8)
