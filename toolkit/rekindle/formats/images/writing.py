"""Images as data: URLs: small ones for displays, whole ones for files of conversations."""

import base64
import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rekindle.core.errors import InvalidRequest
from rekindle.formats.images.parts import is_image, is_video
from rekindle.formats.images.reading import pillow
from rekindle.formats.images.sources import ImageFile, ImageSource, decoded, image_source
from rekindle.formats.images.videos import Video, video_source

LONGEST: Final = 256
"""Pixels of a thumbnail's longer side."""
MOST_COPIES: Final = 64
"""Most thumbnails in memory, of about 10 kB each."""
_TYPES: Final = {b"\x89P": "png", b"\xff\xd8": "jpeg", b"RI": "webp", b"GI": "gif"}
"""The type by the first bytes of a file."""


class _Thumbnails:
    """The latest thumbnails by the digests of their images, since widgets draw conversations again and again."""

    def __init__(self) -> None:
        self._urls: OrderedDict[tuple[bytes, int], str] = OrderedDict()
        self._lock = threading.Lock()

    def url(self, image: ImageSource, longest: int) -> str:
        """Return the thumbnail of an image."""
        data = image.data if isinstance(image, ImageFile) else image.rgb.data
        digest = hashlib.sha256(data)
        digest.update(str(image.size).encode())  # pixels alone have no shape
        key = digest.digest(), longest
        with self._lock:
            url = self._urls.pop(key, None)
        url = url or _thumbnail(image, longest)
        with self._lock:
            self._urls[key] = url
            while len(self._urls) > MOST_COPIES:
                self._urls.popitem(last=False)
        return url


_COPIES: Final = _Thumbnails()


def thumbnails(images: Sequence[ImageSource | Video], longest: int = LONGEST) -> list[tuple[str, str]]:
    """Return a small copy of each image or first frame as a data: URL, with a description; empty for a damaged file.

    Args:
        longest: the most pixels of a side.
    """
    return [(_copy(image, longest), description(image)) for image in images]


def description(image: ImageSource | Video) -> str:
    """Return the size of an image or a video in words, for readers who do not see it."""
    height, width = image.size
    if isinstance(image, Video):
        return f"video of {len(image.frames)} frames of {width} x {height} pixels"
    return f"image of {width} x {height} pixels"


def _copy(image: ImageSource | Video, longest: int) -> str:
    try:
        return _COPIES.url(image.frames[0] if isinstance(image, Video) else image, longest)
    except InvalidRequest:
        return ""


def _thumbnail(image: ImageSource, longest: int) -> str:
    with decoded([image]) as (pixels,):
        small = pillow().fromarray(pixels)
        small.thumbnail((longest, longest))
    return _url(_file(small, "JPEG", quality=85), "jpeg")


def data_url(image: ImageSource) -> str:
    """Return a whole image as a data: URL."""
    if isinstance(image, ImageFile):
        return _url(image.data, _TYPES[image.data[:2]])
    return _url(_file(pillow().fromarray(image.pixels()), "PNG"), "png")


def as_json(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages with images and frames as data: URLs, which JSON can hold and a session reads."""
    return [
        {**message, "content": [_part(part) for part in content]}
        if isinstance(content := message.get("content"), list | tuple)
        else message
        for message in messages
    ]


def _part(part: Any) -> Any:
    if is_video(part):
        video = video_source(part.get("video"), part.get("times"), part.get("fps"))
        return {"type": "video", "video": list(map(data_url, video.frames)), "times": list(video.times)}
    return {**part, "image": data_url(image_source(part.get("image")))} if is_image(part) else part


def _file(image: Any, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def _url(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
