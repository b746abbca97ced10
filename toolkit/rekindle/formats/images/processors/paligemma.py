"""Images of PaliGemma: resized to one square, without their aspect."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, in_patches, in_squares, resize
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
    def place(self) -> str:
        """Text of the token for an image in a rendered prompt."""
        return self.placeholder

    @property
    def placeholder(self) -> str:
        """Text of the token for an image."""
        return self.image

    @property
    def opening(self) -> str:
        """Text for an image in a raw prompt without a place for it."""
        return self.image

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts of tokens of images."""
        return (self.image,)

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

    def tokens(self, height: int, width: int) -> int:
        """Return the number of embeddings of an image."""
        return self.side**2

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder."""
        return self.image * self.side**2

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layout of the embeddings over the image."""
        return (np.arange(self.side**2, dtype=np.int32).reshape(self.side, self.side),)

    def grid_of(self, height: int, width: int) -> None:
        """Return None: positions are indices."""

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image, one segment."""
        square = resize(pixels, (self.size, self.size), self.resample)
        values = in_patches(self.normalization.apply(square)[None], self.patch, 1)
        return Patches(values, in_squares(self.side, self.side, 1)[None], np.ones(values.shape[:2], bool))


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
