"""Images of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: the whole image as patches, near its own size."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rekindle.core.errors import CheckpointError, InvalidRequest, UnsupportedModel
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processed import VideoRules
from rekindle.formats.images.processors.arrays import (
    LENGTHS,
    Normalization,
    by_row,
    full_patches,
    lengths_up_to,
    resize_to_cells,
)
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, ProcessorSettings
from rekindle.formats.images.sizing import Sizing

MOST_ASPECT: Final = 200
"""The most times that the longer side has the shorter one."""
FRAMES: Final = 2
"""Frames of a video with a common patch."""
LEAST_WISHED, MOST_WISHED = 4, 16_384
"""The fewest and the most tokens of an image with wishes for its size, unless they say others; as in qwen-vl-utils."""
LOW_TOKENS: Final = 256
"""The most tokens of an image with low detail, unless the settings ask for more pixels."""


@dataclass(frozen=True, slots=True)
class QwenImages:
    """Rules for the images of a checkpoint.

    Attributes:
        least, most: bounds of the pixels of an image; the sides are multiples of a square of patches.
        resample: the filter of Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        merge: patches of a token, along one side.
        image, start, end, video: texts of the tokens of an embedding, around an image, and of a video.
        videos: rules for videos; None for none.
        sizing: wishes for the size of one image; None for none.
    """

    least: int
    most: int
    resample: int
    normalization: Normalization
    patch: int
    merge: int
    image: str = "<|image_pad|>"
    start: str = "<|vision_start|>"
    end: str = "<|vision_end|>"
    video: str = "<|video_pad|>"
    videos: VideoRules | None = None
    sizing: Sizing | None = None

    @property
    def words(self) -> ImageWords:
        """Texts of tokens of images."""
        opening = self.start + self.image + self.end
        return ImageWords(self.image, (self.image, self.start, self.end, self.video), opening=opening, by_place=True)

    @property
    def segments(self) -> tuple[int, ...]:
        """Numbers of patches of an image with padding."""
        most, least = self.most // self.patch**2, self.least / self.patch**2
        # Sides are at least a square of patches, and those of small images are rounded up.
        of_thin = self.merge * (math.sqrt(MOST_ASPECT * most) + self.merge)
        of_small = least + self.merge * (MOST_ASPECT + 1) * math.sqrt(least / MOST_ASPECT) + self.merge**2
        square = self.merge**2
        largest = min(max(most, math.ceil(max(of_thin, of_small))), LENGTHS[-1])
        return lengths_up_to(-(-largest // square) * square, self.merge)

    @property
    def cell(self) -> int:
        """Pixels of the side of a token."""
        return self.patch * self.merge

    @property
    def most_tokens(self) -> int:
        """Embeddings of the largest image."""
        return self.segments[-1] // self.merge**2

    def at_low_detail(self) -> "QwenImages":
        """Return the rules for images of few tokens."""
        return replace(self, most=min(self.most, max(self.least, LOW_TOKENS * self.cell**2)))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the embeddings of an image.

        Raises:
            InvalidRequest: the image is too thin.
        """
        rows, columns = (side // self.cell for side in self._size(height, width))
        return rows, columns

    def text(self, height: int, width: int) -> str:
        """Return the text in place of the placeholder."""
        return self.image * math.prod(self.grid(height, width))

    def grids(self, height: int, width: int) -> tuple[np.ndarray, ...]:
        """Return the layout of the embeddings over the image."""
        return (by_row(*self.grid(height, width)),)

    def patches(self, pixels: np.ndarray) -> Patches:
        """Return the patches of an image, one segment."""
        image = resize_to_cells(pixels, self.grid(*pixels.shape[:2]), self.cell, self.resample)
        numbers = np.repeat(self.normalization.apply(image), FRAMES, axis=-1)
        return full_patches(numbers[None], self.patch, self.merge)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        if self.sizing is not None:
            height, width = self._wished(self.sizing, height, width)
        return size_within(self.least, self.most, self.cell, height, width)

    def _wished(self, sizing: Sizing, height: int, width: int) -> tuple[int, int]:
        """Return the size of an image as qwen-vl-utils gives it to the processor."""
        token = self.cell**2
        if sizing.resized_height is not None and sizing.resized_width is not None:
            size = sizing.resized_height, sizing.resized_width
            return size_within(LEAST_WISHED * token, MOST_WISHED * token, self.cell, *size, self.cell)
        least, most = sizing.min_pixels or LEAST_WISHED * token, sizing.max_pixels or MOST_WISHED * token
        if least > most:
            raise InvalidRequest.of(
                "prompt",
                f"an image's min_pixels must be at most {most}, and its max_pixels at least {least}, for this model",
            )
        return size_within(least, most, self.cell, height, width, self.cell)


def size_within(least: int, most: int, cell: int, height: int, width: int, least_side: int = 0) -> tuple[int, int]:
    """Return the size of an image for the tower. The operations are those of transformers, in their order.

    Args:
        least, most: bounds of its pixels.
        cell: pixels of the side of a token.
        height, width: the size of the image.
        least_side: pixels of a rounded side at least.

    Raises:
        InvalidRequest: the image is too thin.
    """
    check_aspect(height, width)
    rounded = max(least_side, round(height / cell) * cell), max(least_side, round(width / cell) * cell)
    if math.prod(rounded) > most:
        shrink = math.sqrt(height * width / most)
        return down(cell, height / shrink), down(cell, width / shrink)
    if math.prod(rounded) < least:
        grow = math.sqrt(least / (height * width))
        return math.ceil(height * grow / cell) * cell, math.ceil(width * grow / cell) * cell
    return rounded


def check_aspect(height: int, width: int) -> None:
    """Check the aspect of an image.

    Raises:
        InvalidRequest: the image is too thin.
    """
    if max(height, width) > MOST_ASPECT * min(height, width):
        raise InvalidRequest.of(
            "prompt",
            f"the longer side of an image must be at most {MOST_ASPECT} times the shorter one, got {width} x "
            f"{height}; cut it",
        )


def down(cell: int, side: float) -> int:
    """Return a side as a multiple of a cell, at least one."""
    return max(cell, math.floor(side / cell) * cell)


def read_images(settings: ProcessorSettings) -> QwenImages:
    """Read the rules of a checkpoint. Missing settings have the values of transformers' class.

    Raises:
        CheckpointError: a setting is malformed, or settings do not fit together.
        UnsupportedModel: a setting is not implemented.
    """
    tower, image = settings.tower, settings.image
    settings.require("do_resize", "do_convert_rgb")
    patch = settings.integer(image, "patch_size", settings.integer(tower, "patch_size", 14))
    merge = settings.integer(image, "merge_size", settings.integer(tower, "spatial_merge_size", 2))
    for name, setting, expected in (("patch_size", patch, 14), ("spatial_merge_size", merge, 2)):
        if settings.integer(tower, name, expected) != setting:
            raise CheckpointError(
                f"{settings.source}: the image processor has a {name} of {setting}, and the tower one of "
                f"{tower.get(name)}; fetch the files again"
            )
    if settings.integer(image, "temporal_patch_size", 2) != 2:
        raise UnsupportedModel(f"{settings.source}: an image processor with a temporal_patch_size other than 2")
    size = image.get("size") or {}
    least = settings.integer(image, "min_pixels", settings.integer(size, "shortest_edge", 56 * 56))
    most = settings.integer(image, "max_pixels", settings.integer(size, "longest_edge", 28 * 28 * 1280))
    room = LENGTHS[-1] * patch**2
    return QwenImages(
        least=min(least, room // 2),
        most=min(most, room),
        resample=settings.integer(image, "resample", 3),
        normalization=settings.normalization(CLIP_MEAN, CLIP_STD),
        patch=patch,
        merge=merge,
        image=settings.token("image_token_id", "image_token", "<|image_pad|>"),
        start=settings.token("vision_start_token_id", "vision_bos_token", "<|vision_start|>"),
        end=settings.token("vision_end_token_id", "vision_eos_token", "<|vision_end|>"),
        video=settings.token("video_token_id", "video_token", "<|video_pad|>"),
    )
