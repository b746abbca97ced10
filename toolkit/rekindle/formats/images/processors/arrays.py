"""Arithmetic of pixels, equal to the PIL processors of transformers to the last bit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rekindle.core.errors import InvalidRequest
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.reading import MOST_PIXELS, pillow

LENGTHS: Final = (256, 1024, 2304, 4096, 9216)
"""Patches of square images with 16, 32, 48, 64 and 96 patches along a side: the steps of a segment's padding."""

_SUMMED: Final = 1 << 20
"""Pixels resized at a time."""


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
    """Return pixels (height, width, 3) uint8 in another (height, width), by a filter of Pillow.

    Raises:
        InvalidRequest: the rows have too many pixels after the first of the filter's two passes.
    """
    height, width = size
    if pixels.shape[:2] == size:
        return pixels
    if pixels.shape[0] * width > 2 * MOST_PIXELS:
        raise InvalidRequest.of(
            "prompt",
            f"an image of {pixels.shape[1]} x {pixels.shape[0]} pixels is too thin to be resized to {width} x {height} "
            "for this model; cut it",
        )
    return np.asarray(pillow().fromarray(pixels).resize((width, height), resample=resample))


def resize_to_cells(pixels: np.ndarray, grid: tuple[int, int], cell: int, resample: int) -> np.ndarray:
    """Return pixels (height, width, 3) uint8 with so many pixels along the sides of each cell of a grid."""
    rows, columns = grid
    return resize(pixels, (rows * cell, columns * cell), resample)


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


def full_patches(images: np.ndarray, patch: int, merge: int) -> Patches:
    """Return the patches of images (segments, height, width, 3) float32, one a segment, without padding."""
    values = in_patches(images, patch, merge)
    rows, columns = (side // patch // merge * merge for side in images.shape[1:3])
    shape = values.shape[:2]
    return Patches(values, np.broadcast_to(in_squares(rows, columns, merge), (*shape, 2)).copy(), np.ones(shape, bool))


def by_row(rows: int, columns: int) -> np.ndarray:
    """Return the index of each embedding in a layout by row, (rows, columns) int32."""
    return np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)


def lengths_up_to(most: int, merge: int) -> tuple[int, ...]:
    """Return lengths of segments with padding, ascending up to `most` patches, in multiples of merge²."""
    square = merge**2
    return (*(-(-length // square) * square for length in LENGTHS if length < most), most)


def resize_as_torch(pixels: np.ndarray, size: tuple[int, int], resample: int) -> np.ndarray:
    """Return pixels (height, width, 3) uint8 in another (height, width), as torchvision does with `antialias=True`.

    Args:
        pixels: the pixels.
        size: the new height and width.
        resample: the number of Pillow for the filter, one of `FILTERS`.
    """
    height, width = size
    if pixels.shape[1] != width:
        pixels = _along_rows(pixels.swapaxes(0, 1), width, resample).swapaxes(0, 1)
    return np.ascontiguousarray(pixels if pixels.shape[0] == height else _along_rows(pixels, height, resample))


def _along_rows(pixels: np.ndarray, count: int, resample: int) -> np.ndarray:
    """Return so many rows, each a weighted sum of the nearest ones."""
    places, weights, shift = _weights(len(pixels), count, resample)
    rows = np.empty((count, *pixels.shape[1:]), np.uint8)
    columns = max(1, _SUMMED // count)
    for first in range(0, pixels.shape[1], columns):  # a sum takes 30 times the memory of its pixel
        part = pixels[:, first : first + columns]
        total = np.full((count, *part.shape[1:]), 1 << (shift - 1), np.int32)
        for tap in range(places.shape[1]):
            total += weights[:, tap, None, None] * part[places[:, tap]]
        rows[:, first : first + columns] = np.clip(total >> shift, 0, 255)
    return rows


def _weights(source: int, count: int, resample: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the rows of the source for each of `count` rows, their weights as integers, and the bits of a fraction."""
    scale, (taps, weigh) = source / count, FILTERS[resample]
    stretch = max(scale, 1.0)
    support = taps * stretch
    centres = scale * (np.arange(count) + 0.5)
    first = np.maximum((centres - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + support + 0.5).astype(np.int64), source)
    places = first[:, None] + np.arange(int((last - first).max()))[None]
    weights = weigh(np.abs((places - centres[:, None] + 0.5) / stretch))
    weights[places >= last[:, None]] = 0.0
    weights /= weights.sum(1, keepdims=True)
    shift = 0
    while shift < 22 and int(0.5 + weights.max() * (1 << (shift + 1))) < 1 << 15:
        shift += 1
    whole = np.trunc(weights * (1 << shift) + np.copysign(0.5, weights)).astype(np.int32)
    return np.minimum(places, source - 1), whole, shift


def _linear(distance: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.maximum(0.0, 1.0 - distance)
    return weights


def _cubic(distance: np.ndarray) -> np.ndarray:
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))


FILTERS: Final[Mapping[int, tuple[float, Callable[[np.ndarray], np.ndarray]]]] = {2: (1.0, _linear), 3: (2.0, _cubic)}
"""By their numbers in Pillow, the filters of `resize_as_torch`: the distance without weight, and weights by distance.
The second is Keys' cubic convolution (1981) with a parameter of -1/2."""
