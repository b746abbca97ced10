"""Images as one square of each, cut out of the middle, padded, or without the aspect: those of LLaVA and PaliGemma."""

from dataclasses import dataclass

import numpy as np

from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, by_row, full_patches, resize
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.reading import check_pixels


@dataclass(frozen=True, slots=True)
class SquareImages:
    """Rules for the images of a checkpoint.

    Attributes:
        size: pixels of an image's side.
        keeps_aspect: whether an image keeps its aspect, with its shorter side in this size before the middle is cut.
        padding: the colour beside an image that is padded to a square first; None for no padding.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        image: text of the token of an embedding.
        opening, place: see `ImageWords`.
    """

    size: int
    keeps_aspect: bool
    padding: tuple[int, ...] | None
    resample: int
    normalization: Normalization
    patch: int
    image: str
    opening: str = ""
    place: str = ""

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        return ImageWords(self.image, (self.image,), self.place, self.opening)

    @property
    def side(self) -> int:
        """Patches, and tokens, along a side."""
        return self.size // self.patch

    @property
    def segments(self) -> tuple[int, ...]:
        """Patches of an image."""
        return (self.side**2,)

    @property
    def most_tokens(self) -> int:
        """Embeddings of an image."""
        return self.side**2

    def at_low_detail(self) -> "SquareImages":
        """Return these rules: all images have the same number of tokens."""
        return self

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder.

        Raises:
            InvalidRequest: the image is too thin.
        """
        if self.padding is not None:
            check_pixels((max(height, width),) * 2)
        elif self.keeps_aspect:
            check_pixels(self._size_before_cut(height, width))
        return self.image * self.side**2

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layout of the embeddings over the image."""
        return (by_row(self.side, self.side),)

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image, one segment."""
        square = self._square(pixels if self.padding is None else padded(pixels, self.padding))
        return full_patches(self.normalization.apply(square)[None], self.patch, 1)

    def _square(self, pixels: np.ndarray) -> np.ndarray:
        if not self.keeps_aspect:
            return resize(pixels, (self.size, self.size), self.resample)
        pixels = resize(pixels, self._size_before_cut(*pixels.shape[:2]), self.resample)
        row, column = ((side - self.size) // 2 for side in pixels.shape[:2])
        return pixels[row : row + self.size, column : column + self.size]

    def _size_before_cut(self, height: int, width: int) -> tuple[int, int]:
        """Return the size before the cut, with the aspect of the image."""
        longer = int(self.size * max(height, width) / min(height, width))
        return (self.size, longer) if height <= width else (longer, self.size)


def padded(pixels: np.ndarray, colour: tuple[int, ...]) -> np.ndarray:
    """Return pixels (height, width, 3) uint8 in the middle of a square of a colour."""
    height, width, _ = pixels.shape
    side = max(height, width)
    square = np.empty((side, side, 3), np.uint8)
    square[:] = colour
    row, column = (side - height) // 2, (side - width) // 2
    square[row : row + height, column : column + width] = pixels
    return square
