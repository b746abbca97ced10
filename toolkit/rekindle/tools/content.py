"""Contents of tool messages: text, and pictures for models with a tower."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from rekindle.core.errors import ConfigError, InvalidRequest
from rekindle.core.words import size_text
from rekindle.formats.images.parts import image_part, is_image
from rekindle.formats.images.sources import ImageFile, ImagePixels

Content: TypeAlias = str | list[dict[str, Any]]
"""A text, or parts with text and pictures."""
UNSEEN: Final = ": not shown, as only text can be read here"
_TYPES: Final = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
"""The media type by the first bytes of a file."""


def picture_part(value: Any) -> dict[str, Any] | None:
    """Return the part for a picture: a PIL image, or the bytes of a file; None for any other value."""
    is_file = isinstance(value, bytes | bytearray | memoryview) and bytes(value[:4]).startswith(tuple(_TYPES))
    if not is_file and not (hasattr(value, "getbands") and hasattr(value, "convert")):
        return None
    try:
        return image_part(value)
    except (InvalidRequest, ConfigError):  # a damaged or too large one; or no Pillow
        return None


def for_model(content: Content, *, sees: bool) -> Content:
    """Return a content as a model reads it.

    Args:
        content: the content.
        sees: whether the model takes pictures.
    """
    return content if sees else as_text(content, UNSEEN)


def as_text(content: Content, note: str = "") -> str:
    """Return a content as text, with names in place of pictures.

    Args:
        content: the content.
        note: the end of the name of each picture.
    """
    if isinstance(content, str):
        return content
    return "\n".join(_name(part, note) if is_image(part) else str(part["text"]) for part in content)


def data_name(kind: str, media_type: Any, size: int, note: str = UNSEEN) -> str:
    """Return the name of data that is not shown, with its size in bytes."""
    return f"[{kind}, {media_type}, {size_text(size)}{note}]"


def _name(part: Mapping[str, Any], note: str) -> str:
    image = part["image"]
    if isinstance(image, ImageFile):
        return data_name(
            "image", next(kind for mark, kind in _TYPES.items() if image.data.startswith(mark)), len(image.data), note
        )
    assert isinstance(image, ImagePixels), "a part has a file or pixels"
    height, width = image.size
    return f"[image, {width}x{height} pixels{note}]"
