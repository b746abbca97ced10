"""Images of PaliGemma: resized to one square, without their aspect."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, by_row, full_patches, resize
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import Settings


@dataclass(frozen=True, slots=True)
class PaliGemmaImages:
    """Rules for the images of a checkpoint.

    Attributes:
        size: pixels of an image's side.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        image: text of the token of an embedding.
    """

    size: int
    resample: int
    normalization: Normalization
    patch: int
    image: str = "<image>"

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        return ImageWords(self.image, (self.image,))

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

    def at_low_detail(self) -> "PaliGemmaImages":
        """Return these rules: all images have the same number of tokens."""
        return self

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder."""
        return self.image * self.side**2

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layout of the embeddings over the image."""
        return (by_row(self.side, self.side),)

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image, one segment."""
        square = resize(pixels, (self.size, self.size), self.resample)
        return full_patches(self.normalization.apply(square)[None], self.patch, 1)


def read_paligemma(settings: Settings) -> PaliGemmaImages:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' class.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize", "do_convert_rgb")
    size: Any = settings.image.get("size") or {"height": 224, "width": 224}
    sides, trained = {settings.integer(size, name) for name in ("height", "width")}, settings.side("image_size", 224)
    if sides != {trained}:
        raise CheckpointError(
            f"{settings.source}: the image processor's size is {size!r:.80}, and that of the tower {trained} x "
            f"{trained}. Fetch the model again"
        )
    half = (0.5, 0.5, 0.5)
    return PaliGemmaImages(
        size=trained,
        resample=settings.integer(settings.image, "resample", 3),
        normalization=settings.normalization(half, half),
        patch=settings.side("patch_size", 16),
        image=settings.token("image_token_index", "image_token", "<image>"),
    )
