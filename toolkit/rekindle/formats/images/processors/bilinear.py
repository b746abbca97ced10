"""Bilinear resizing of bytes with the weights of torchvision, which have 16 bits; Pillow's have more."""

import numpy as np


def resize_bilinear(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return pixels (height, width, 3) uint8 in another (height, width), as torchvision does with `antialias=True`."""
    height, width = size
    if pixels.shape[1] != width:
        pixels = _along_rows(pixels.swapaxes(0, 1), width).swapaxes(0, 1)
    return np.ascontiguousarray(pixels if pixels.shape[0] == height else _along_rows(pixels, height))


def _along_rows(pixels: np.ndarray, count: int) -> np.ndarray:
    """Return so many rows, each a weighted sum of the nearest ones."""
    places, weights, shift = _weights(len(pixels), count)
    total = np.full((count, *pixels.shape[1:]), 1 << (shift - 1), np.int32)
    for tap in range(places.shape[1]):
        total += weights[:, tap, None, None] * pixels[places[:, tap]]
    rows: np.ndarray = np.clip(total >> shift, 0, 255).astype(np.uint8)
    return rows


def _weights(source: int, count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the rows of the source for each of `count` rows, their weights as integers, and the bits of a fraction."""
    scale = source / count
    support = max(scale, 1.0)
    centres = scale * (np.arange(count) + 0.5)
    first = np.maximum((centres - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + support + 0.5).astype(np.int64), source)
    places = first[:, None] + np.arange(int((last - first).max()))[None]
    weights = np.maximum(0.0, 1.0 - np.abs((places - centres[:, None] + 0.5) / support))
    weights[places >= last[:, None]] = 0.0
    weights /= weights.sum(1, keepdims=True)
    shift = 0
    while shift < 22 and int(0.5 + weights.max() * (1 << (shift + 1))) < 1 << 15:
        shift += 1
    return np.minimum(places, source - 1), (weights * (1 << shift) + 0.5).astype(np.int32), shift
