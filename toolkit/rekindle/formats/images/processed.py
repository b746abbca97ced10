"""Images in prompts, and pairs of frames of videos: their texts, and their pixels as patches."""

import hashlib
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.memory import DIGEST_BYTES, ImageIdentity, ImageMemory
from rekindle.formats.images.processors.arrays import by_row
from rekindle.formats.images.processors.processor import ImageProcessor, grid_of
from rekindle.formats.images.room import Ended, never
from rekindle.formats.images.sources import ImageSource, decoded

Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """The pixels of an image in a prompt; picklable.

    Attributes:
        image: the file or the pixels.
        processor: the rules of the model.
    """

    image: ImageSource
    processor: ImageProcessor

    def identity(self, memory: ImageMemory, ended: Ended = never) -> ImageIdentity:
        """Return the identity of the image; see `ImageMemory.identity`."""
        return memory.identity(self.image, self.processor, ended)

    def text(self, size: Size) -> str:
        """Return the text in place of an image of this size."""
        return self.processor.text(*size)

    def extent(self, size: Size) -> tuple[int, int | None]:
        """Return the position in time, and None for as many positions as the longer side has."""
        return 0, None

    def grid(self, size: Size) -> tuple[int, int] | None:
        """Return rows and columns of the embeddings, for positions by both; None for positions by index."""
        return grid_of(self.processor, *size)

    def patches(self) -> Patches:
        """Return the patches of the image, with padding up to one of the processor's lengths of segments.

        Raises:
            InvalidRequest: the file is damaged.
        """
        with decoded([self.image]) as (pixels,):
            return _padded(self.processor.patches(pixels), self.processor.segments)

    def grids(self, size: Size) -> tuple[np.ndarray, ...]:
        """Return the layouts of the embeddings of an image of this size; see `ImageProcessor.grids`."""
        return self.processor.grids(*size)


class VideoRules(Protocol):
    """Interface of the rules of a family for the pairs of frames of a video: frozen, and with all settings in its
    `repr`.
    """

    @property
    def video(self) -> str:
        """Text of the special token for an embedding, and for the place of a video."""

    @property
    def segments(self) -> tuple[int, ...]:
        """Numbers of patches of a segment with padding, ascending."""

    def grid(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the embeddings of a pair, in a video of so many frames of this size."""

    def text(self, time: float, tokens: int) -> str:
        """Return the text of a pair with a mean time, in seconds, and so many embeddings."""

    def patches(self, frames: tuple[np.ndarray, np.ndarray], count: int) -> Patches:
        """Return the patches of a pair, (height, width, 3) uint8 each, in a video of so many frames."""

    def positions(self, times: tuple[float, ...]) -> tuple[int, ...] | None:
        """Return the positions of pairs in time after the first one, given the times of the frames in seconds.

        Returns:
            None for pairs with text between, each like an image.
        """


@dataclass(frozen=True, slots=True)
class ProcessedFrames:
    """The pixels of two successive frames of a video in a prompt; picklable.

    Attributes:
        image: the first frame.
        second: the second frame.
        time: the mean of their times in seconds.
        count: the number of frames of the video.
        processor: the rules of the model.
        position: the position in time, and whether the pair is the last one; None for a pair like an image.
    """

    image: ImageSource
    second: ImageSource
    time: float
    count: int
    processor: VideoRules
    position: tuple[int, bool] | None = None

    def identity(self, memory: ImageMemory, ended: Ended = never) -> ImageIdentity:
        """Return the identity of the frames in their size, which depends on the number of frames.

        Arguments and errors are those of `ImageMemory.identity`.
        """
        first, second = (memory.identity(each, self.processor, ended) for each in (self.image, self.second))
        at = "" if self.position is None else f" at {self.position}"
        content = hashlib.sha256(f"frames of {self.grid(first.size)}{at}\0".encode() + first.digest + second.digest)
        return ImageIdentity(content.digest()[:DIGEST_BYTES], first.size)

    def extent(self, size: Size) -> tuple[int, int | None]:
        """Return the position in time, and the positions before that of the next token; see `Picture`."""
        if self.position is None:
            return 0, None
        time, is_last = self.position
        return time, max(*self.grid(size), time + 1) if is_last else 0

    def text(self, size: Size) -> str:
        """Return the text in the place of the frames."""
        rows, columns = self.grid(size)
        return self.processor.text(self.time, rows * columns)

    def grid(self, size: Size) -> tuple[int, int]:
        """Return rows and columns of the embeddings."""
        return self.processor.grid(self.count, *size)

    def patches(self) -> Patches:
        """Return the patches of the frames, with padding up to one of the processor's lengths of segments.

        Raises:
            InvalidRequest: a file is damaged.
        """
        with decoded([self.image, self.second]) as (first, second):
            return _padded(self.processor.patches((first, second), self.count), self.processor.segments)

    def grids(self, size: Size) -> tuple[np.ndarray, ...]:
        """Return the layout of the embeddings over frames of this size."""
        return (by_row(*self.grid(size)),)


Processed: TypeAlias = ProcessedImage | ProcessedFrames
"""The pixels of adjacent embeddings in a prompt."""


def _padded(patches: Patches, segments: tuple[int, ...]) -> Patches:
    length = patches.valid.shape[1]
    return patches.padded(next(each for each in segments if each >= length))
