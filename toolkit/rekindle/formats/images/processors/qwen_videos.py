"""Videos of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: each two successive frames are patches of one image."""

import math
from dataclasses import dataclass, replace

import numpy as np

from rekindle.core.errors import UnsupportedModel
from rekindle.core.models.vision.patches import Patches
from rekindle.formats.images.processors.arrays import Normalization, full_patches, resize_as_torch
from rekindle.formats.images.processors.qwen import FRAMES, QwenImages, check_aspect, down, read_images, size_within
from rekindle.formats.images.processors.settings import CLIP_MEAN, CLIP_STD, HALF, ProcessorSettings


@dataclass(frozen=True, slots=True)
class TimedPairs:
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
        check_aspect(height, width)
        most = min(self._most(count), round(count / 2) * 2 * self.most_of_frame)
        rows, columns = round(height / cell), round(width / cell)
        pixels = round(count / 2) * 2 * rows * columns * cell**2
        if pixels > most:
            shrink = math.sqrt(count * height * width / most)
            rows, columns = down(cell, height / shrink) // cell, down(cell, width / shrink) // cell
        elif pixels < self.least:
            grow = math.sqrt(self.least / (count * height * width))
            rows, columns = math.ceil(height * grow / cell), math.ceil(width * grow / cell)
        room = self.segments[-1] // self.merge**2
        return min(rows, max(1, room // columns)), min(columns, room)

    def patches(self, frames: tuple[np.ndarray, np.ndarray], count: int) -> Patches:
        """Return the patches of a pair, (height, width, 3) uint8 each, in a video of so many frames."""
        return _patches(self, frames, self.grid(count, *frames[0].shape[:2]))

    def positions(self, times: tuple[float, ...]) -> None:
        """Return None: text between pairs has their times."""

    def _most(self, count: int) -> int:
        """Return the most pixels of so many frames by the settings."""
        if not self.cap:
            return self.most
        share = min(self.most_tokens * (self.patch * self.merge) ** 2, self.most // count)
        return max(share, int(self.least * 1.05)) * count


@dataclass(frozen=True, slots=True)
class AdjacentPairs:
    """Rules for the videos of a Qwen2-VL or Qwen2.5-VL: pairs of frames without text between, at positions in time.

    Attributes:
        least, most: bounds of the pixels of a frame.
        most_of_all: the most pixels of all frames, with at least `least` in each; None for no bound.
        rate: positions in a second; None for one position of each pair.
        resample: the filter, by its number in Pillow.
        normalization: from bytes to the tower's numbers.
        patch: pixels of a patch's side.
        merge: patches of a token, along one side.
        segments: numbers of patches of an image with padding.
        video: text of the token of an embedding.
    """

    least: int
    most: int
    most_of_all: int | None
    rate: int | None
    resample: int
    normalization: Normalization
    patch: int
    merge: int
    segments: tuple[int, ...]
    video: str

    def text(self, time: float, tokens: int) -> str:
        """Return the text of a pair with so many embeddings; its time is in its positions."""
        return self.video * tokens

    def grid(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the embeddings of a pair, in a video of so many frames of this size.

        Large frames shrink to the largest image.

        Raises:
            InvalidRequest: the frames are too thin.
        """
        most, cell = self.most, self.patch * self.merge
        if self.most_of_all is not None:
            most = max(min(most, self.most_of_all * FRAMES // count), int(self.least * 1.05))
        rows, columns = (side // cell for side in size_within(self.least, most, cell, height, width))
        room = self.segments[-1] // self.merge**2
        return min(rows, max(1, room // columns)), min(columns, room)

    def patches(self, frames: tuple[np.ndarray, np.ndarray], count: int) -> Patches:
        """Return the patches of a pair, (height, width, 3) uint8 each, in a video of so many frames."""
        return _patches(self, frames, self.grid(count, *frames[0].shape[:2]))

    def positions(self, times: tuple[float, ...]) -> tuple[int, ...]:
        """Return the positions of pairs in time after the first one, given the times of the frames in seconds.

        Those of frames in equal steps have the rounding of transformers.
        """
        pairs = range(-(-len(times) // FRAMES))
        if self.rate is None:
            return tuple(pairs)
        steps = np.diff(times)
        if np.ptp(steps) > 1e-6 * steps.max():
            return tuple(int(self.rate * (times[FRAMES * pair] - times[0])) for pair in pairs)
        interval = np.float32(self.rate) * np.float32(FRAMES * (times[-1] - times[0]) / (len(times) - 1))
        return tuple(int(np.float32(pair) * interval) for pair in pairs)


def _patches(
    rules: TimedPairs | AdjacentPairs, frames: tuple[np.ndarray, np.ndarray], grid: tuple[int, int]
) -> Patches:
    """Return the patches of two frames with so many rows and columns of embeddings."""
    height, width = (count * rules.patch * rules.merge for count in grid)
    resized = (resize_as_torch(frame, (height, width), rules.resample) for frame in frames)
    both = np.stack(list(map(rules.normalization.apply, resized)), axis=-1)
    return full_patches(both.reshape(1, height, width, -1), rules.patch, rules.merge)


def read_qwen3(settings: ProcessorSettings) -> QwenImages:
    """Read the rules of a Qwen3-VL or Qwen3.5, with those for videos; see `read_images`."""
    images, video = read_images(settings), settings.video
    size = video.get("size") or {}
    _check_frames(settings)
    videos = TimedPairs(
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
    return replace(images, videos=videos)


def read_qwen2(settings: ProcessorSettings) -> QwenImages:
    """Read the rules of a Qwen2-VL or Qwen2.5-VL, with those for videos; see `read_images`.

    Without settings for videos, those for images count, as in transformers.
    """
    images, video = read_images(settings), settings.video or settings.image
    size = video.get("size") or {}
    _check_frames(settings)
    of_all = int(settings.integer(video, "max_video_tokens", 128_000) * images.cell * images.cell * 0.9)
    is_timed = settings.config.get("model_type") == "qwen2_5_vl"
    videos = AdjacentPairs(
        least=settings.integer(video, "min_pixels", settings.integer(size, "shortest_edge", 128 * 28 * 28)),
        most=settings.integer(video, "max_pixels", settings.integer(size, "longest_edge", 768 * 28 * 28)),
        most_of_all=of_all if video.get("cap_pixels_per_frame") else None,
        rate=settings.integer(settings.tower, "tokens_per_second", 4) if is_timed else None,
        resample=3,
        normalization=replace(settings, image=video).normalization(CLIP_MEAN, CLIP_STD).fused(),
        patch=images.patch,
        merge=images.merge,
        segments=images.segments,
        video=images.video,
    )
    return replace(images, videos=videos)


def _check_frames(settings: ProcessorSettings) -> None:
    if settings.integer(settings.video, "temporal_patch_size", FRAMES) != FRAMES:
        raise UnsupportedModel(f"{settings.source}: a video processor with a temporal_patch_size other than {FRAMES}")
