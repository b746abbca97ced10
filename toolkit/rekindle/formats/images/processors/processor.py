"""The interface of image processors, one for each family of models with images, and facts by it."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rekindle.core.models.vision.patches import Patches


@dataclass(frozen=True, slots=True)
class ImageWords:
    """Texts of a family's tokens of images.

    Attributes:
        placeholder: text of the special token for an embedding.
        texts: texts of all special tokens of images. In a user's text, they are plain text.
        place: text of the special token for an image in a rendered prompt; empty for the placeholder.
        opening: text for an image in a raw prompt without a place for it; it has the place. Empty for the place.
        by_place: whether positions of embeddings are by row and column of the first layout, or by index.
    """

    placeholder: str
    texts: tuple[str, ...]
    place: str = ""
    opening: str = ""
    by_place: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", self.place or self.placeholder)
        object.__setattr__(self, "opening", self.opening or self.place)


class ImageProcessor(Protocol):
    """Interface of the rules of a family for images: frozen, picklable, and with all settings in its `repr`."""

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""

    @property
    def segments(self) -> tuple[int, ...]:
        """Numbers of patches of a segment with padding, ascending: a program of the tower for each."""

    @property
    def most_tokens(self) -> int:
        """Number of embeddings of the largest image."""

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the place of an image of this size."""

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layouts of an image's embeddings over the image, the finest first.

        Returns:
            For each, (rows, columns) int32: the index of the embedding of each part of the image among all of them.
        """

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image, (height, width, 3) uint8."""

    def at_low_detail(self) -> "ImageProcessor":
        """Return the processor with the fewest tokens of an image."""


def tokens_of(processor: ImageProcessor, height: int, width: int) -> int:
    """Return the number of embeddings of an image of this size."""
    return sum(grid.size for grid in processor.grids(height, width))


def grid_of(processor: ImageProcessor, height: int, width: int) -> tuple[int, int] | None:
    """Return rows and columns of the embeddings of an image, for positions by both; None for positions by index."""
    if not processor.words.by_place:
        return None
    rows, columns = processor.grids(height, width)[0].shape
    return rows, columns
