"""Grids of tiles: the choice of rows and columns by the aspect of an image."""

from collections.abc import Iterable

import numpy as np

Grid = tuple[int, int]
"""Columns and rows."""


def grids_between(least: int, most: int) -> list[Grid]:
    """Return the grids with so many tiles."""
    sides = range(1, most + 1)
    return [(columns, rows) for columns in sides for rows in sides if least <= columns * rows <= most]


def nearest_grid(size: tuple[int, int], tile: int, grids: Iterable[Grid]) -> tuple[int, int]:
    """Return rows and columns of the grid with the aspect nearest to that of an image.

    Of grids as near, the last one with less than twice the pixels of the image is taken, in the order of their tiles,
    and of the argument. The comparisons of floats are those of transformers.

    Args:
        size: (height, width) of the image in pixels.
        tile: pixels of a tile's side.
        grids: the choice.
    """
    height, width = size
    best, best_difference = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - columns / rows)
        is_covered = width * height > 0.5 * (tile * tile * columns * rows)
        if difference < best_difference or (difference == best_difference and is_covered):
            best, best_difference = (rows, columns), difference
    return best


def cut(pixels: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Return the tiles of pixels by row, (rows * columns, tile height, tile width, 3)."""
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    return pixels.reshape(rows, height, columns, width, 3).swapaxes(1, 2).reshape(-1, height, width, 3)


def tiled_order(rows: int, columns: int, side: int) -> np.ndarray:
    """Return the index of the embedding of each part of an image in tiles, (rows * side, columns * side) int32."""
    order = np.arange(rows * columns * side * side, dtype=np.int32).reshape(rows, columns, side, side)
    return order.swapaxes(1, 2).reshape(rows * side, columns * side)
