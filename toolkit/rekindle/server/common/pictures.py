"""Images and videos in bodies: files in data: URLs or in base64. Nothing is fetched, and no path is read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rekindle.core.errors import ConfigError, InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.images.parts import check_video, image_part, is_image, is_pictured, video_part
from rekindle.formats.images.reading import MOST_PIXELS
from rekindle.formats.images.sources import ImageFile, from_base64, from_data_url
from rekindle.formats.images.videos import MOST_FRAMES, Video
from rekindle.server.common.errors import invalid_field

MOST_IMAGES: Final = 16
"""Most images of a request."""
MOST_REQUEST_PIXELS: Final = 8 * MOST_PIXELS
"""Most pixels of all images and frames of a request."""
URL_PARTS: Final = ("image_url", "input_image")
"""Types of OpenAI's parts with an image."""
_FRAMES: Final = "data:video/jpeg;base64,"
"""Beginning of a URL with the frames of a video, each in base64, with commas between them, as for vLLM."""


def content_in(content: Any, param: str, place: str) -> Any:
    """Return a content with OpenAI's parts for images, and vLLM's for videos, as those of the session.

    Other parts are unchanged.

    Args:
        content: the content of a message.
        param: the field of the body.
        place: the place of the content in the body, for errors.

    Raises:
        ApiError: an image is malformed or out of bounds.
    """
    if not isinstance(content, list):
        return content
    return [_part(part, param, f"{place}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, param: str, place: str) -> Any:
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "image" and not isinstance(part.get("image"), ImageFile):  # such as a path, which only Python may give
        raise invalid_field(param, f"{place} must give its image as image_url, with a data: URL")
    if kind == "video":
        raise invalid_field(param, f"{place} must give its frames as video_url, with a data: URL")
    if kind == "video_url":
        return _from_video_url(part, param, place)
    if kind in URL_PARTS:
        return from_url(part, param, place)
    if kind not in ("image", "text"):
        forms = "text, image_url (a data: URL) or video_url (frames in a data: URL)"
        raise invalid_field(param, f"{place} must be a part of the type {forms}, got {preview(kind, 40)}")
    return part


def from_url(part: Mapping[str, Any], param: str, place: str) -> dict[str, Any]:
    """Return OpenAI's part with an image as a part of the session.

    Args:
        part: a part of one of `URL_PARTS`.
        param: the field of the body.
        place: the place of the part in the body, for errors.

    Raises:
        ApiError: the image is malformed or out of bounds.
    """
    inner = part.get("image_url")
    source: Mapping[str, Any] = inner if isinstance(inner, dict) else {"url": inner}
    value, detail = source.get("url"), source.get("detail") or part.get("detail")
    if not isinstance(value, str) or not value.startswith("data:"):
        rule = "must be a data: URL, such as data:image/png;base64,...; nothing is fetched"
        raise invalid_field(param, f"{place}.image_url {rule}, got {preview(value, 60)}")
    return _read(lambda: image_part(from_data_url(value), detail or "auto", {**part, **source}), param, place)


def _from_video_url(part: Mapping[str, Any], param: str, place: str) -> dict[str, Any]:
    """Return a part with the frames of a video, and "fps" or "times" beside its URL, as a part of the session."""
    inner = part.get("video_url")
    source: Mapping[str, Any] = inner if isinstance(inner, dict) else {"url": inner}
    value = source.get("url")
    if not isinstance(value, str) or not value.startswith(_FRAMES):
        rule = f"must be as {_FRAMES}FRAME,FRAME,..., with each frame in base64; no video file is decoded"
        raise invalid_field(param, f"{place}.video_url {rule}, got {preview(value, 60)}")
    texts = value.removeprefix(_FRAMES).split(",", MOST_FRAMES)

    def make() -> dict[str, Any]:
        check_video({**part, **source})
        return video_part(list(map(from_base64, texts)), source.get("times"), source.get("fps"))

    return _read(make, param, place)


def from_text(text: Any, param: str, place: str, beside: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a file in base64 as a part of the session.

    Args:
        text: the file in base64.
        param: the field of the body.
        place: the place of the file in the body, for errors.
        beside: the values beside it; see `image_part`.

    Raises:
        ApiError: the image is malformed or out of bounds.
    """
    if not isinstance(text, str):
        raise invalid_field(param, f"{place} must be a file in base64, got {preview(text, 60)}")
    return _read(lambda: image_part(from_base64(text), beside=beside or {}), param, place)


def check_count(messages: Sequence[Mapping[str, Any]], param: str) -> None:
    """Check the number of images in messages, and of their pixels with those of videos.

    Raises:
        ApiError: there are more than `MOST_IMAGES`, or than `MOST_REQUEST_PIXELS`.
    """
    contents = [content for message in messages if isinstance(content := message.get("content"), list)]
    parts = [part for content in contents for part in content if is_pictured(part)]
    count = sum(map(is_image, parts))
    if count > MOST_IMAGES:
        raise invalid_field(param, f"{param} may have {MOST_IMAGES} images, got {count}")
    pixels = sum(map(_pixels_of, parts))
    if pixels > MOST_REQUEST_PIXELS:
        most = MOST_REQUEST_PIXELS // 1_000_000
        got = f"{pixels // 1_000_000} million"
        raise invalid_field(
            param,
            f"the images and frames of {param} may have {most} million pixels together, got {got}; make them smaller",
        )


def _pixels_of(part: Mapping[str, Any]) -> int:
    """Return the number of pixels of a part with a read image or video."""
    source = part["image"] if is_image(part) else part["video"]
    count = len(source.frames) if isinstance(source, Video) else 1
    height, width = source.size
    return int(count * height * width)


def refuse_images(messages: Sequence[Mapping[str, Any]], param: str) -> None:
    """Check messages for a route of text alone.

    Raises:
        ApiError: there is one.
    """
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(map(is_pictured, content)):
            raise invalid_field(param, f"{param} may have text alone on this route, got an image")


def _read(make: Callable[[], dict[str, Any]], param: str, place: str) -> dict[str, Any]:
    try:
        return make()
    except (InvalidRequest, ConfigError) as error:
        raise invalid_field(param, f"{place}: {error}") from error
