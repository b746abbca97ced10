"""Images in the contents of messages: parts such as {"type": "image", "image": ...}."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.core.request.checks import preview
from rekindle.formats.images.sources import ImageSource, image_source

DETAILS: Final = ("auto", "low", "high")
"""Details of an image: "low" has the fewest tokens, the others all."""
SOURCES: Final = ("image", "path", "url")
"""Keys of a part for the image, as in messages for transformers; the first one counts."""
PLACE: Final[Mapping[str, Any]] = {"type": "image"}
"""The part for the chat template: the place of an image."""


def is_image(part: object) -> bool:
    """Return True for a part with an image."""
    return isinstance(part, Mapping) and part.get("type") == "image"


def image_part(image: Any, detail: str = "auto") -> dict[str, Any]:
    """Return the part of a message for an image.

    Args:
        image: see `image_source`.
        detail: one of `DETAILS`.

    Raises:
        InvalidRequest: the image or the detail is none.
        ConfigError: Pillow is not installed.
    """
    if detail not in DETAILS:
        raise InvalidRequest.of("prompt", f"an image's detail must be auto, low or high, got {preview(detail)}")
    return {"type": "image", "image": image_source(image), **({} if detail == "auto" else {"detail": detail})}


def with_sources(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages whose images are independent of later changes by the caller, and of files.

    Raises:
        InvalidRequest: an image is none, or out of bounds; the error names its message.
        ConfigError: Pillow is not installed.
    """
    return [_with_sources(place, message) for place, message in enumerate(messages)]


def _with_sources(place: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list | tuple) or not any(map(is_image, content)):
        return message
    try:
        parts = [image_part(_value(part), part.get("detail", "auto")) if is_image(part) else part for part in content]
    except InvalidRequest as error:
        raise InvalidRequest.of("prompt", f"messages[{place}]: {error}") from error
    return {**message, "content": parts}


def _value(part: Mapping[str, Any]) -> Any:
    """Return the image of a part."""
    return next((part[key] for key in SOURCES if part.get(key) is not None), None)


def images_in(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[ImageSource, str]]:
    """Yield each image of messages, in order, with its detail."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            if is_image(part):
                yield image_source(_value(part)), part.get("detail", "auto")


def with_places(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages with places of images instead of images, for a chat template."""
    return [
        {**message, "content": [PLACE if is_image(part) else part for part in content]}
        if isinstance(content := message.get("content"), list | tuple)
        else message
        for message in messages
    ]
