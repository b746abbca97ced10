"""The interface of image processors: one for each family of models with images."""

from typing import Protocol

import numpy as np

from rekindle.core.models.vision.patches import Patches


class ImageProcessor(Protocol):
    """Interface of the rules of a family for images: frozen, picklable, and with all settings in its `repr`."""

    @property
    def place(self) -> str:
        """Text of the special token for an image in a rendered prompt."""

    @property
    def placeholder(self) -> str:
        """Text of the special token for an embedding; may be the same."""

    @property
    def opening(self) -> str:
        """Text for an image in a raw prompt without a place for it; it has the place."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of special tokens of images, with these two. In a user's text, they are plain text."""

    @property
    def segments(self) -> tuple[int, ...]:
        """Numbers of patches of a segment with padding, ascending: a program of the tower for each."""

    @property
    def most_tokens(self) -> int:
        """Number of embeddings of the largest image."""

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the place of an image of this size."""

    def tokens(self, height: int, width: int) -> int:
        """Return the number of embeddings of an image of this size."""

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layouts of an image's embeddings over the image, the finest first.

        Returns:
            For each, (rows, columns) int32: the index of the embedding of each part of the image among all of them.
        """

    def grid_of(self, height: int, width: int) -> tuple[int, int] | None:
        """Return rows and columns of the embeddings of an image, for positions by both; None for positions by index."""

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image, (height, width, 3) uint8."""

    def at_low_detail(self) -> "ImageProcessor":
        """Return the processor with the fewest tokens of an image."""
