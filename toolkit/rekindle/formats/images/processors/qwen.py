"""Images of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: the whole image as patches, near its own size."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rekindle.core.errors import CheckpointError, InvalidRequest, UnsupportedModel
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import (
    LENGTHS,
    Normalization,
    by_row,
    full_patches,
    lengths_up_to,
    resize_as_torch,
    resize_to_cells,
)
from rekindle.formats.images.processors.processor import ImageWords
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, Settings

MOST_ASPECT: Final = 200
"""The most times that the longer side has the shorter one."""
FRAMES: Final = 2
"""Frames of a video with a common patch."""
HALF: Final = (0.5, 0.5, 0.5)
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
        frames: frames with a common patch: an image is so many equal ones.
        videos: rules for videos; None for none.
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
    frames: int = 1
    videos: "QwenVideos | None" = None

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
        numbers = np.repeat(self.normalization.apply(image), self.frames, axis=-1)
        return full_patches(numbers[None], self.patch, self.merge)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of an image for the tower. The operations are those of transformers, in their order."""
        _check_aspect(height, width)
        factor = self.cell
        rounded = round(height / factor) * factor, round(width / factor) * factor
        if math.prod(rounded) > self.most:
            shrink = math.sqrt(height * width / self.most)
            return _down(self.cell, height / shrink), _down(self.cell, width / shrink)
        if math.prod(rounded) < self.least:
            grow = math.sqrt(self.least / (height * width))
            return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
        return rounded


@dataclass(frozen=True, slots=True)
class QwenVideos:
    """Rules for the videos of a Qwen3-VL or Qwen3.5: two successive frames are like an image, behind their time.

    Attributes:
        least, most: bounds of the pixels of all frames.
        most_of_frame: the most pixels of a frame.
        cap: whether frames share `most` in equal parts of at most `most_tokens`.
        most_tokens: the most embeddings of a frame with `cap`.
        resample: the filter, by its number in Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        merge: patches of a token, along one side.
        segments: numbers of patches of an image with padding.
        start, video, end: texts of the tokens around a pair of frames, and of an embedding.
    """

    least: int
    most: int
    most_of_frame: int
    cap: bool
    most_tokens: int
    resample: int
    normalization: Normalization
    patch: int
    merge: int
    segments: tuple[int, ...]
    start: str
    video: str
    end: str

    def text(self, time: float, tokens: int) -> str:
        """Return the text of a pair with a mean time, in seconds, and so many embeddings."""
        return f"<{time:.1f} seconds>{self.start}{self.video * tokens}{self.end}"

    def grid(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the embeddings of a pair, in a video of so many frames of this size.

        The operations are those of transformers, in their order. Large frames shrink to the largest image.

        Raises:
            InvalidRequest: the frames are too thin.
        """
        cell = self.patch * self.merge
        if min(height, width) < cell:
            scale = max(cell / height, cell / width)
            height, width = int(height * scale), int(width * scale)
        _check_aspect(height, width)
        most = min(self._most(count), round(count / 2) * 2 * self.most_of_frame)
        rows, columns = round(height / cell), round(width / cell)
        pixels = round(count / 2) * 2 * rows * columns * cell**2
        if pixels > most:
            shrink = math.sqrt(count * height * width / most)
            rows, columns = _down(cell, height / shrink) // cell, _down(cell, width / shrink) // cell
        elif pixels < self.least:
            grow = math.sqrt(self.least / (count * height * width))
            rows, columns = math.ceil(height * grow / cell), math.ceil(width * grow / cell)
        room = self.segments[-1] // self.merge**2
        return min(rows, max(1, room // columns)), min(columns, room)

    def patches(self, frames: tuple[np.ndarray, np.ndarray], count: int) -> Patches:
        """Return the patches of a pair, (height, width, 3) uint8 each, in a video of so many frames."""
        rows, columns = self.grid(count, *frames[0].shape[:2])
        size = rows * self.patch * self.merge, columns * self.patch * self.merge
        both = [self.normalization.apply(resize_as_torch(frame, size, self.resample)) for frame in frames]
        return full_patches(np.stack(both, axis=-1).reshape(1, *size, -1), self.patch, self.merge)

    def _most(self, count: int) -> int:
        """Return the most pixels of so many frames by the settings."""
        if not self.cap:
            return self.most
        share = min(self.most_tokens * (self.patch * self.merge) ** 2, self.most // count)
        return max(share, int(self.least * 1.05)) * count


def _check_aspect(height: int, width: int) -> None:
    if max(height, width) > MOST_ASPECT * min(height, width):
        raise InvalidRequest.of(
            "prompt",
            f"the longer side of an image must be at most {MOST_ASPECT} times the shorter one, got {width} x "
            f"{height}; cut it",
        )


def _down(cell: int, side: float) -> int:
    return max(cell, math.floor(side / cell) * cell)


def read_qwen3(settings: Settings) -> QwenImages:
    """Read the rules of a Qwen3-VL or Qwen3.5, with those for videos; see `read_qwen`."""
    images, video = read_qwen(settings), settings.video
    size = video.get("size") or {}
    if settings.integer(video, "temporal_patch_size", FRAMES) != FRAMES:
        raise UnsupportedModel(f"{settings.source}: a video processor with a temporal_patch_size other than {FRAMES}")
    videos = QwenVideos(
        least=settings.integer(size, "shortest_edge", 128 * 32 * 32),
        most=settings.integer(size, "longest_edge", 768 * 32 * 32),
        most_of_frame=images.most,
        cap=bool(video.get("cap_pixels_per_frame")),
        most_tokens=settings.integer(video, "max_video_tokens", 768),
        resample=3,
        normalization=replace(settings, image=video).normalization(HALF, HALF).fused(),
        patch=images.patch,
        merge=images.merge,
        segments=images.segments,
        start=images.start,
        video=images.video,
        end=images.end,
    )
    return replace(images, frames=FRAMES, videos=videos)


def read_qwen(settings: Settings) -> QwenImages:
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
