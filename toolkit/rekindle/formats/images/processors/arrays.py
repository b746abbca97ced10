"""Arithmetic of pixels, equal to the PIL processors of transformers to the last bit."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from rekindle.formats.images.reading import pillow

LENGTHS: Final = (256, 1024, 2304, 4096, 9216)
"""Patches of square images with 16, 32, 48, 64 and 96 patches along a side: the steps of a segment's padding."""


@dataclass(frozen=True, slots=True)
class Normalization:
    """Conversion of bytes to the numbers of a tower, by channel.

    Attributes:
        scale: factor of a byte; None for none.
        mean, std: subtrahend and divisor after it, by channel; None for none.
    """

    scale: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def fused(self) -> "Normalization":
        """Return the same without the first step, as torchvision computes it."""
        if self.scale is None or self.mean is None or self.std is None:
            return self
        mean, std = (tuple(each / self.scale for each in values) for values in (self.mean, self.std))
        return Normalization(None, mean, std)

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels (..., 3) uint8 as float32. A byte has one number in each channel, so a table has all."""
        values = np.arange(256).astype(np.float64)
        scaled = (values if self.scale is None else values * self.scale).astype(np.float32)
        numbers = np.empty(pixels.shape, np.float32)
        for channel in range(3):
            table = scaled
            if self.mean is not None and self.std is not None:
                table = (scaled - np.float32(self.mean[channel])) / np.float32(self.std[channel])
            numbers[..., channel] = table[pixels[..., channel]]
        return numbers


def resize(pixels: np.ndarray, size: tuple[int, int], resample: int) -> np.ndarray:
    """Return pixels (height, width, 3) uint8 in another (height, width), by a filter of Pillow."""
    height, width = size
    if pixels.shape[:2] == size:
        return pixels
    return np.asarray(pillow().fromarray(pixels).resize((width, height), resample=resample))


def in_patches(tiles: np.ndarray, patch: int, merge: int) -> np.ndarray:
    """Return tiles (tiles, height, width, channels) as patches (tiles, patches, patch * patch * channels).

    Each merge² successive patches are one square, by row and column in it. The numbers of a patch are by row, column
    and channel. Pixels beyond the last whole square are left out.
    """
    count, height, width, channels = tiles.shape
    square = patch * merge
    rows, columns = height // square, width // square
    tiles = tiles[:, : rows * square, : columns * square]
    parts = tiles.reshape(count, rows, merge, patch, columns, merge, patch, channels)
    ordered = parts.transpose(0, 1, 4, 2, 5, 3, 6, 7)
    return np.ascontiguousarray(ordered).reshape(count, rows * columns * merge**2, patch * patch * channels)


def in_squares(rows: int, columns: int, merge: int) -> np.ndarray:
    """Return row and column of each patch, (rows * columns, 2) int32, in the order of `in_patches`."""
    places = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1).astype(np.int32)
    squares = places.reshape(rows // merge, merge, columns // merge, merge, 2).swapaxes(1, 2)
    return np.ascontiguousarray(squares).reshape(-1, 2)


def lengths_up_to(most: int, merge: int) -> tuple[int, ...]:
    """Return lengths of segments with padding, ascending up to `most` patches, in multiples of merge²."""
    square = merge**2
    return (*(-(-length // square) * square for length in LENGTHS if length < most), most)
