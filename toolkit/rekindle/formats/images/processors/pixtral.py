"""Images of Pixtral, Mistral Small 3 and Ministral 3: whole, in their aspect, with a token behind each row."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rekindle.core.errors import CheckpointError
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import (
    Normalization,
    by_row,
    full_patches,
    lengths_up_to,
    resize_to_cells,
)
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, ProcessorSettings


@dataclass(frozen=True, slots=True)
class PixtralImages:
    """Rules for the images of a checkpoint.

    Attributes:
        longest_edge: the most pixels of a side, before it is raised to whole tokens.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        merge: patches of a token, along one side.
        image, row_end, image_end: texts of the tokens of an embedding, behind a row, and behind the last row.
    """

    longest_edge: int
    resample: int
    normalization: Normalization
    patch: int
    merge: int
    image: str = "[IMG]"
    row_end: str = "[IMG_BREAK]"
    image_end: str = "[IMG_END]"

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        return ImageWords(self.image, (self.image, self.row_end, self.image_end))

    @property
    def segments(self) -> tuple[int, ...]:
        """Patches of a whole image with padding."""
        return lengths_up_to((-(-self.longest_edge // self.cell) * self.merge) ** 2, self.merge)

    @property
    def cell(self) -> int:
        """Pixels of a token's side."""
        return self.patch * self.merge

    @property
    def most_tokens(self) -> int:
        """Embeddings of the largest image."""
        return self.segments[-1] // self.merge**2

    def at_low_detail(self) -> "PixtralImages":
        """Return the rules for an image with at most 16 tokens along a side."""
        return replace(self, longest_edge=min(self.longest_edge, 16 * self.cell))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the tokens of an image. A side that would vanish has one token."""
        ratio = max(height / self.longest_edge, width / self.longest_edge)
        if ratio > 1:
            height, width = (max(1, math.floor(side / ratio)) for side in (height, width))
        return -(-height // self.cell), -(-width // self.cell)

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder: the tokens by row."""
        rows, columns = self.grid(height, width)
        return self.row_end.join([self.image * columns] * rows) + self.image_end

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layout of the embeddings: by row."""
        return (by_row(*self.grid(height, width)),)

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image, one segment."""
        image = resize_to_cells(pixels, self.grid(*pixels.shape[:2]), self.cell, self.resample)
        return full_patches(self.normalization.apply(image)[None], self.patch, self.merge)


def read_pixtral(settings: ProcessorSettings) -> PixtralImages:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' class.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    settings.require("do_resize", "do_convert_rgb")
    patch = settings.integer(settings.tower, "patch_size", 16)
    is_merged = settings.config.get("model_type") != "llava"
    merge = settings.integer(settings.config, "spatial_merge_size", 2) if is_merged else 1
    size = settings.image.get("size") or {"longest_edge": settings.side("image_size", 1024)}
    images = PixtralImages(
        longest_edge=settings.integer(size, "longest_edge"),
        resample=settings.integer(settings.image, "resample", 3),
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch=patch,
        merge=merge,
        image=settings.token("image_token_index", "image_token", "[IMG]"),
        row_end=settings.processor_text("image_break_token", "[IMG_BREAK]"),
        image_end=settings.processor_text("image_end_token", "[IMG_END]"),
    )
    _check_cell(settings, images)
    return images


def _check_cell(settings: ProcessorSettings, images: PixtralImages) -> None:
    """Check the size of a token in the processor's settings against that of the tower.

    Raises:
        CheckpointError: they differ.
    """
    cell: Any = settings.image.get("patch_size") or images.cell
    sides = [cell.get("height"), cell.get("width")] if isinstance(cell, dict) else [cell]
    if any(side not in (images.cell, images.patch) for side in sides):
        raise CheckpointError(
            f"{settings.source}: the image processor's patch_size is {cell!r:.80}, but a token has {images.cell} "
            "pixels along a side by config.json. Fetch the model again"
        )
