"""Videos in messages: lists of frames with their times. No video file is decoded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.images.sources import ImageSource, image_source

MOST_FRAMES: Final = 768
"""Most frames of a video."""


@dataclass(frozen=True, slots=True)
class Video:
    """A video in a message, independent of the caller's objects; picklable.

    Attributes:
        frames: the frames, at least two, of one size.
        times: seconds of each from the video's start.
    """

    frames: tuple[ImageSource, ...] = field(repr=False)
    times: tuple[float, ...]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the first frame."""
        return self.frames[0].size


def video_source(frames: Any, times: Any = None, fps: Any = None) -> Video:
    """Return a video.

    Args:
        frames: the frames, each as for `image_source`, or one array (frames, height, width, 3).
        times: seconds of each frame from the video's start, ascending; None for frames in equal steps.
        fps: frames of a second, in equal steps from 0; None for `times`.

    Raises:
        InvalidRequest: an argument is something else.
        ConfigError: Pillow is not installed.
    """
    if isinstance(frames, Video):
        return frames
    if getattr(frames, "ndim", None) == 4:
        frames = list(frames)
    if not isinstance(frames, list | tuple):
        raise InvalidRequest.of(
            "prompt",
            f"a video must be a list of its frames, since no video file is decoded, got {preview(frames, 80)}; read "
            "them with a library such as PyAV, and give each as an image",
        )
    if not 2 <= len(frames) <= MOST_FRAMES:
        raise InvalidRequest.of("prompt", f"a video must have 2 to {MOST_FRAMES} frames, got {len(frames)}")
    sources = tuple(map(image_source, frames))
    sizes = {source.size for source in sources}
    if len(sizes) > 1:
        (height, width), (other, wide) = sorted(sizes)[:2]
        raise InvalidRequest.of(
            "prompt",
            f"the frames of a video must have one size, got {width} x {height} and {wide} x {other} pixels; resize "
            "them first",
        )
    return Video(sources, _times(len(sources), times, fps))


def _times(count: int, times: Any, fps: Any) -> tuple[float, ...]:
    """Return the seconds of each frame."""
    if (times is None) == (fps is None):
        got = "neither" if times is None else "both"
        raise InvalidRequest.of("prompt", f"a video must have times, the seconds of its frames, or fps, got {got}")
    if times is None:
        if not _is_number(fps) or fps <= 0:
            raise InvalidRequest.of("prompt", f"the fps of a video must be a positive number, got {preview(fps)}")
        return tuple(index / fps for index in range(count))
    numbers = times.tolist() if hasattr(times, "tolist") else times
    if not isinstance(numbers, Sequence) or not all(map(_is_number, numbers)) or len(numbers) != count:
        raise InvalidRequest.of(
            "prompt", f"the times of a video must be a number for each of its {count} frames, got {preview(times, 80)}"
        )
    if numbers[0] < 0 or any(first > second for first, second in pairwise(numbers)):
        raise InvalidRequest.of(
            "prompt", f"the times of a video must ascend from 0 or later, got {preview(times, 80)}; sort its frames"
        )
    return tuple(map(float, numbers))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
