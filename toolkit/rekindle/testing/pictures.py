"""Fake images: their pixels are a number. For `rekindle.testing`."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from zlib import crc32

import numpy as np

from rekindle.core.models.vision.patches import Patches
from rekindle.core.request.picture import Picture
from rekindle.testing.grammar import VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class FakePixels:
    """Pixels of a fake image.

    Attributes:
        number: the value of every pixel.
        segments: the number of segments of the image.
    """

    number: int
    segments: int = 1

    def patches(self) -> Patches:
        """Return one patch of one value for each segment."""
        shape = self.segments, 1
        values = np.full((*shape, 1), self.number, np.float32)
        return Patches(values, np.zeros((*shape, 2), np.int32), np.ones(shape, bool))


def fake_picture(number: int, positions: Sequence[int], segments: int = 1) -> Picture:
    """Return a fake image with its tokens at these positions; the number of tokens is a multiple of the segments."""
    pixels = FakePixels(number, segments)
    digest = sha256(repr(pixels).encode()).digest()[:16]
    return Picture(digest, np.array(positions, np.int32), pixels)


def picture_stamp(patches: Patches) -> int:
    """Return the stamp of an image's tokens in the pages of the fake device, above all other stamps."""
    return (1 + crc32(patches.values[:1].tobytes())) * VOCAB_SIZE << 96
