"""Images of LLaVA: one square of each, cut out of the middle, padded, or without the aspect."""

from dataclasses import dataclass

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, by_row, full_patches, resize
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, Settings
from rekindle.formats.images.reading import check_size

HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True, slots=True)
class LlavaImages:
    """Rules for the images of a checkpoint.

    Attributes:
        size: pixels of an image's side.
        keeps_aspect: whether an image keeps its aspect, with its shorter side in this size before the middle is cut.
        padding: the colour beside an image that is padded to a square first; None for no padding.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        image: text of the token of an embedding.
    """

    size: int
    keeps_aspect: bool
    padding: tuple[int, ...] | None
    resample: int
    normalization: Normalization
    patch: int
    image: str = "<image>"

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        return ImageWords(self.image, (self.image,), opening=f"{self.image}\n")

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

    def at_low_detail(self) -> "LlavaImages":
        """Return these rules: all images have the same number of tokens."""
        return self

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder.

        Raises:
            InvalidRequest: the image is too thin.
        """
        if self.padding is not None:
            check_size((max(height, width),) * 2)
        elif self.keeps_aspect:
            check_size(self._size_before_cut(height, width))
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


def read_squares(settings: Settings) -> LlavaImages:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' classes.

    Raises:
        CheckpointError: a setting is malformed.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize", "do_convert_rgb")
    image, size = settings.image, square_size(settings)
    is_siglip = str(image.get("image_processor_type", "")).startswith("Siglip")
    normalization = settings.normalization(*((HALF, HALF) if is_siglip else (CLIP_MEAN, CLIP_STD)))
    colour = tuple(int(each * 255) for each in normalization.mean or (0.0, 0.0, 0.0))
    return LlavaImages(
        size=size,
        keeps_aspect="shortest_edge" in (image.get("size") or {"shortest_edge": size}),
        padding=colour if image.get("do_pad") else None,
        resample=settings.integer(image, "resample", 3),
        normalization=normalization,
        patch=settings.side("patch_size", 32),
        image=settings.token("image_token_index", "image_token", "<image>"),
    )


def square_size(settings: Settings) -> int:
    """Return the pixels of the side of the tower's squares, which the image processor's sizes must be.

    Raises:
        CheckpointError: a size is malformed.
        UnsupportedModel: the image processor makes others.
    """
    trained, image = settings.side("image_size", 224), settings.image
    size = image.get("size") or {"shortest_edge": 224}
    cut = (image.get("crop_size") or {}) if image.get("do_center_crop", True) else {}
    by_name = [each if isinstance(each, dict) else {"size": each} for each in (size, cut)]  # older files have a number
    sides = [settings.integer(each, name) for each in by_name for name in each]
    if set(sides) != {trained}:
        raise UnsupportedModel(
            f"{settings.source}: images of {size!r:.80}, cut to {cut!r:.80}, are not supported, only those of the "
            f"tower, {trained} x {trained}. Fetch the model again"
        )
    return trained
