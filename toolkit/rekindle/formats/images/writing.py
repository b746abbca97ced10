"""Images as data: URLs: small ones for displays, whole ones for files of conversations."""

import base64
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from rekindle.formats.images.parts import is_image
from rekindle.formats.images.reading import pillow
from rekindle.formats.images.sources import ImageFile, ImageSource, image_source

LONGEST: Final = 256
"""Pixels of a thumbnail's longer side."""
_TYPES: Final = {b"\x89P": "png", b"\xff\xd8": "jpeg", b"RI": "webp", b"GI": "gif"}
"""The type by the first bytes of a file."""


def thumbnail(image: ImageSource) -> str:
    """Return a small copy of an image as a data: URL, of at most `LONGEST` pixels a side.

    Raises:
        InvalidRequest: the file is damaged.
    """
    return _of_file(image) if isinstance(image, ImageFile) else _thumbnail(image)


@lru_cache(maxsize=64)
def _of_file(image: ImageFile) -> str:
    return _thumbnail(image)  # a widget draws a conversation again and again


def _thumbnail(image: ImageSource) -> str:
    small = pillow().fromarray(image.pixels())
    small.thumbnail((LONGEST, LONGEST))
    return _url(_file(small, "JPEG", quality=85), "jpeg")


def data_url(image: ImageSource) -> str:
    """Return a whole image as a data: URL."""
    if isinstance(image, ImageFile):
        return _url(image.data, _TYPES[image.data[:2]])
    return _url(_file(pillow().fromarray(image.pixels()), "PNG"), "png")


def as_json(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages with images as data: URLs, which JSON can hold and a session reads."""
    return [
        {**message, "content": [_part(part) for part in content]}
        if isinstance(content := message.get("content"), list | tuple)
        else message
        for message in messages
    ]


def _part(part: Any) -> Any:
    return {**part, "image": data_url(image_source(part.get("image")))} if is_image(part) else part


def _file(image: Any, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def _url(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
