"""Images and videos in the contents of messages: parts such as {"type": "image", "image": ...}."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from rekindle.core.errors import InvalidRequest

if TYPE_CHECKING:
    from rekindle.formats.images.sizing import Sizing
    from rekindle.formats.images.sources import ImageSource
    from rekindle.formats.images.videos import Video

SOURCES: Final = ("image", "path", "url")
"""Keys of a part for the image, as in messages for transformers; the first one counts."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def is_image(part: object) -> bool:
    """Return True for a part with an image."""
    return isinstance(part, Mapping) and part.get("type") == "image"


def is_video(part: object) -> bool:
    """Return True for a part with the frames of a video."""
    return isinstance(part, Mapping) and part.get("type") == "video"


def is_pictured(part: object) -> bool:
    """Return True for a part with an image or a video."""
    return is_image(part) or is_video(part)


def image_part(image: Any, detail: str = "auto", beside: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """Return the part of a message for an image.

    Args:
        image: see `image_source`.
        detail: one of `DETAILS`.
        beside: values beside the image, with the wishes of `PIXELS` for its size among them.

    Raises:
        InvalidRequest: the image, the detail or a wish is none.
        ConfigError: Pillow is not installed.
    """
    from rekindle.formats.images.sizing import Sizing, wishes_in
    from rekindle.formats.images.sources import image_source

    wishes = {**wishes_in(beside), **({} if detail == "auto" else {"detail": detail})}
    Sizing.of(wishes)
    return {"type": "image", "image": image_source(image), **wishes}


def video_part(frames: Any, times: Any = None, fps: Any = None) -> dict[str, Any]:
    """Return the part of a message for a video; arguments and errors as of `video_source`."""
    from rekindle.formats.images.videos import video_source

    return {"type": "video", "video": video_source(frames, times, fps)}


def with_sources(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages whose images are independent of later changes by the caller, and of files.

    Raises:
        InvalidRequest: an image is none, or out of bounds; the error names its message.
        ConfigError: Pillow is not installed.
    """
    return [_with_sources(place, message) for place, message in enumerate(messages)]


def _with_sources(place: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list | tuple) or not any(map(is_pictured, content)):
        return message
    try:
        parts = [_part(part) for part in content]
    except InvalidRequest as error:
        raise InvalidRequest.of("prompt", f"messages[{place}]: {error}") from error
    return {**message, "content": parts}


def _part(part: Any) -> Any:
    """Return a part, with its image or its video read."""
    if is_video(part):
        check_video(part)
        return video_part(part.get("video"), part.get("times"), part.get("fps"))
    return image_part(_value(part), part.get("detail", "auto"), part) if is_image(part) else part


def check_video(part: Mapping[str, Any]) -> None:
    """Check the values beside a video.

    Raises:
        InvalidRequest: there is a wish for the pixels of an image.
    """
    from rekindle.formats.images.sizing import wishes_in

    if wishes := wishes_in(part):
        raise InvalidRequest.of(
            "prompt", f"a video takes no {' or '.join(wishes)}, which are for images; resize its frames first"
        )


def _value(part: Mapping[str, Any]) -> Any:
    """Return the image of a part."""
    return next((part[key] for key in SOURCES if part.get(key) is not None), None)


def images_in(messages: Sequence[Mapping[str, Any]]) -> "Iterator[tuple[ImageSource | Video, str | Sizing]]":
    """Yield each image and each video of messages, in order, with its detail or its whole sizing."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            if is_pictured(part):
                yield _sized(part)


def _sized(part: Mapping[str, Any]) -> "tuple[ImageSource | Video, str | Sizing]":
    """Return the image or the video of a part, with its detail or its whole sizing."""
    from rekindle.formats.images.sizing import Sizing, wishes_in
    from rekindle.formats.images.sources import image_source
    from rekindle.formats.images.videos import video_source

    if is_video(part):
        return video_source(part.get("video"), part.get("times"), part.get("fps")), "auto"
    return image_source(_value(part)), Sizing.of(part) if wishes_in(part) else part.get("detail", "auto")


def with_places(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages with places of images and videos instead of these, for a chat template."""
    return [
        {**message, "content": [{"type": part["type"]} if is_pictured(part) else part for part in content]}
        if isinstance(content := message.get("content"), list | tuple)
        else message
        for message in messages
    ]
