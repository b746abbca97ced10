"""Images as callers give them: a file with its bytes, or pixels."""

import base64
import binascii
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias

import numpy as np

from rekindle.core.errors import InvalidRequest, RekindleError
from rekindle.core.request.checks import preview
from rekindle.formats.images.containers.orientation import SIDEWAYS, turn_of
from rekindle.formats.images.reading import check_size, decode, memory_of, pillow, pixels_of, plain_of
from rekindle.formats.images.room import ROOM, Ended, never

MOST_BYTES: Final = 20 << 20
"""Most bytes of an image's file."""
ACCEPTED: Final = "a PIL image, an array (height, width, 3) of uint8, a path, the bytes of a file, or a data: URL"
_RESIZED: Final = 5
"""Bytes of a pixel in Pillow while an image is resized, with those of the smaller copies."""
_SPACES: Final = b" \t\n\r\v\f"
_DATA_URL: Final = re.compile(r"data:[\w.+-]*/?[\w.+-]*(?:;[\w.+-]+=[^;,]*)*(?P<base64>;base64)?,", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImageFile:
    """The file of an image: PNG, JPEG, WebP, or GIF.

    Attributes:
        data: the bytes of the file.
        size: (height, width) before a turn by its EXIF.
    """

    data: bytes = field(repr=False)
    size: tuple[int, int]

    @property
    def upright(self) -> tuple[int, int]:
        """(height, width) of the pixels, after the turn."""
        plain = plain_of(self.data)
        height, width = plain.size
        return (width, height) if turn_of(plain.exif, plain.xmp) in SIDEWAYS else (height, width)

    @property
    def memory(self) -> int:
        """The most bytes for decoding and resizing."""
        plain = plain_of(self.data)
        height, width = plain.size
        return max(memory_of(plain), memory_of(plain) - plain.memory + _RESIZED * height * width)

    def pixels(self, ended: Ended = never) -> np.ndarray:
        """Decode the file as RGB, (height, width, 3) uint8: turned by its EXIF, on white where it is transparent.

        Args:
            ended: asked between the steps of the decoder.

        Raises:
            InvalidRequest: the file is damaged.
            RequestCancelled: nobody waits for the image any more.
        """
        return decode(self.data, ended)


@dataclass(frozen=True, slots=True, eq=False)
class ImagePixels:
    """The pixels of an image.

    Attributes:
        rgb: the pixels, (height, width, 3) uint8.
    """

    rgb: np.ndarray = field(repr=False)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        height, width, _ = self.rgb.shape
        return height, width

    @property
    def upright(self) -> tuple[int, int]:
        """(height, width)."""
        return self.size

    @property
    def memory(self) -> int:
        """The most bytes for resizing."""
        return _RESIZED * self.size[0] * self.size[1]

    def pixels(self, ended: Ended = never) -> np.ndarray:
        """Return the pixels."""
        return self.rgb


ImageSource: TypeAlias = ImageFile | ImagePixels
"""An image, independent of the caller's object; picklable."""


@contextmanager
def decoded(images: Sequence[ImageSource], ended: Ended = never) -> Iterator[list[np.ndarray]]:
    """Decode images, and hold the memory for them in the room of the process during a block.

    Blocks must not be nested: the room may be that of one.

    Args:
        images: the images.
        ended: asked while they wait for room, and between the steps of a decoder.

    Raises:
        InvalidRequest: a file is damaged.
        RequestCancelled: nobody waits for the images any more.
    """
    with ROOM.take(sum(image.memory for image in images), ended):
        yield [image.pixels(ended) for image in images]


def image_source(value: Any) -> ImageSource:
    """Return an image in any of the accepted forms, independent of later changes by the caller.

    Args:
        value: see `ACCEPTED`. A str is a path, unless it begins with "data:".

    Raises:
        InvalidRequest: the value is no image, or an image out of bounds.
        ConfigError: Pillow is not installed.
    """
    match value:
        case ImageFile() | ImagePixels():
            return value
        case bytes() | bytearray() | memoryview():
            return image_file(bytes(value))
        case str() if value.startswith("data:"):
            return from_data_url(value)
        case str() if re.match(r"[a-z][a-z0-9+.-]+://", value, re.IGNORECASE):
            raise InvalidRequest.of(
                "prompt",
                f"an image must not be an address, because nothing is fetched: got {preview(value, 80)}. Download it, "
                "and give its bytes or its path",
            )
        case str() | PurePath():
            return _from_path(Path(value))
    if hasattr(value, "getbands") and hasattr(value, "convert"):  # a PIL image, without an import of Pillow
        return ImagePixels(_from_pil(value))
    if hasattr(value, "__array__") and hasattr(value, "ndim"):
        return ImagePixels(_from_array(value))
    cure = "; read it: .read()" if callable(getattr(value, "read", None)) else ""
    raise InvalidRequest.of("prompt", f"an image must be {ACCEPTED}; got {preview(value)}{cure}")


def image_file(data: bytes) -> ImageFile:
    """Return the image of a file, after checks of its size and of its first bytes.

    Raises:
        InvalidRequest: the file is too large, is no image of a supported format, or has too many pixels.
        ConfigError: Pillow is not installed.
    """
    check_length(len(data))
    return ImageFile(data, plain_of(data).size)


def check_length(length: int) -> None:
    """Check the number of bytes of an image's file.

    Raises:
        InvalidRequest: the file is empty, or larger than `MOST_BYTES`.
    """
    if length > MOST_BYTES:
        raise InvalidRequest.of(
            "prompt", f"an image may have {MOST_BYTES >> 20} MiB, got {length / (1 << 20):.1f} MiB; save it smaller"
        )
    if length <= 0:
        raise InvalidRequest.of("prompt", "an image must be a whole file, got an empty file")


def from_data_url(url: str) -> ImageFile:
    """Return the image of a `data:` URL.

    Raises:
        InvalidRequest: the URL is no base64 `data:` URL of an image, or the image is out of bounds.
        ConfigError: Pillow is not installed.
    """
    match = _DATA_URL.match(url[:256])
    if match is None or not match["base64"]:
        raise InvalidRequest.of(
            "prompt", f"an image's URL must be as data:image/png;base64,..., got {preview(url[:80], 80)}"
        )
    return from_base64(url[match.end() :])


def from_base64(text: str) -> ImageFile:
    """Return the image of a file in base64.

    Raises:
        InvalidRequest: the text is not base64, or the image is out of bounds.
        ConfigError: Pillow is not installed.
    """
    check_length(max(1, len(text) * 3 // 4 - 2))
    try:
        data = base64.b64decode(text.encode("ascii").translate(None, _SPACES), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest.of("prompt", f"an image must be in base64: {error}. Encode the whole file") from error
    return image_file(data)


def _from_path(path: Path) -> ImageFile:
    try:
        with path.open("rb") as file:  # once: a pipe has its bytes no second time, and no size
            if stat.S_ISREG((status := os.fstat(file.fileno())).st_mode):
                check_length(status.st_size)
            return image_file(file.read(MOST_BYTES + 1))
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        if isinstance(error, RekindleError):  # of the image, or of a missing Pillow
            raise
        raise InvalidRequest.of(
            "prompt", f"an image cannot be read from {preview(str(path), 120)} ({error}): give the path of a file"
        ) from error


def _from_pil(image: Any) -> np.ndarray:
    """Return the pixels of a PIL image, which may not be read from its file yet."""
    check_size((image.height, image.width))
    try:
        return pixels_of(image)
    except RekindleError:
        raise
    except Exception as error:  # any error of a decoder, or of a mode without a conversion
        raise InvalidRequest.of(
            "prompt", f"a PIL image of mode {image.mode!r} cannot be read as RGB ({error}): give image.convert('RGB')"
        ) from error


def _from_array(value: Any) -> np.ndarray:
    """Return an array of pixels as RGB."""
    array = np.asarray(value)
    if array.ndim == 2:
        array = array[:, :, None]
    shape = tuple(array.shape)
    if array.ndim != 3 or shape[2] not in (1, 3, 4):
        channels_first = array.ndim == 3 and shape[0] in (1, 3, 4)
        cure = "; put the channels last: .transpose(1, 2, 0)" if channels_first else ""
        raise InvalidRequest.of(
            "prompt", f"an image's array must be (height, width, 3), got {tuple(np.shape(value))}{cure}"
        )
    if array.dtype != np.uint8:
        cure = ": (image * 255).round().astype('uint8'), if its numbers are from 0 to 1"
        cure = cure if np.issubdtype(array.dtype, np.floating) else ""
        raise InvalidRequest.of("prompt", f"an image's array must be uint8, got {array.dtype}; convert it{cure}")
    check_size(shape[:2])
    if shape[2] == 4:
        return pixels_of(_pil(array))
    return np.repeat(array, 3, axis=2) if shape[2] == 1 else _own(array)


def _pil(array: np.ndarray) -> Any:

    return pillow().fromarray(np.ascontiguousarray(array))


def _own(array: np.ndarray) -> np.ndarray:
    """Return a copy in memory order, which nobody else changes."""
    return np.array(array, dtype=np.uint8, order="C")
