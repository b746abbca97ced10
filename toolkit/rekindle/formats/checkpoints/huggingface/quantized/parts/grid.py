"""Scales of rectangles of a matrix: the whole, rows, groups in rows, or blocks."""

from dataclasses import dataclass

import numpy as np

from rekindle.formats.checkpoints.huggingface.quantized.parts.stored import Floats, Stored, ceil
from rekindle_kernels.blocks import Array


@dataclass(frozen=True, slots=True)
class Grid:
    """The size of the rectangles with one scale each; the last ones of rows and columns may be smaller.

    Attributes:
        rows: rows of a rectangle.
        columns: columns of a rectangle.
    """

    rows: int
    columns: int

    def count(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers of rectangles along both axes of a matrix."""
        return ceil(shape[0], self.rows), ceil(shape[1], self.columns)

    def scales(self, stored: Array, total: int, rows: slice) -> Floats:
        """Return the scales of some of all rows, (rows, groups) float32, from one for each rectangle."""
        blocks = stored.reshape(ceil(total, self.rows), -1)
        some = blocks[rows] if self.rows == 1 else blocks[np.arange(rows.start, rows.stop) // self.rows]
        return some.astype(np.float32)


def grid_of(
    stored: Stored, name: str, shape: tuple[int, ...], block: tuple[int, int] | None, columns: tuple[int, ...] = ()
) -> Grid:
    """Return the rectangles of a matrix with these scales.

    Args:
        stored: the tensors.
        name: the stored name of the scales.
        shape: (..., out, in) of the matrix, or of a stack of matrices; scales have the same leading axes.
        block: the rows and columns of a rectangle by the config; None for whole rows, or the whole matrix.
        columns: possible sizes of groups in rows by the config; none for no groups.

    Raises:
        CheckpointError: the scales do not have the shape for such rectangles.
    """
    actual, stack, whole = stored.shape(name), shape[:-2], Grid(*shape[-2:])
    by_row = Grid(1, whole.columns)
    expected = {(): whole, (1,): whole, (1, 1): whole, (whole.rows,): by_row, (whole.rows, 1): by_row}
    if block is not None:
        expected = {Grid(*block).count(shape[-2:]): Grid(*block)}
    elif columns:
        expected = {Grid(1, size).count(shape[-2:]): Grid(1, size) for size in columns}
    by_shape = {(*stack, *each): grid for each, grid in expected.items()}
    if actual not in by_shape:
        raise stored.wrong(name, " or ".join(map(str, by_shape)), actual)
    return by_shape[actual]
