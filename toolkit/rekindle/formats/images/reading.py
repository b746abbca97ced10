"""Decoding of images as RGB, within bounds. Nothing of a file is trusted, and nothing but its pixels is decoded."""

import io
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from rekindle.core.errors import ConfigError, InvalidRequest, RekindleError, not_installed
from rekindle.formats.images.containers import gif, jpeg, png, webp
from rekindle.formats.images.containers.orientation import turn_of, turned
from rekindle.formats.images.containers.plain import Check, DamagedImage, Plain
from rekindle.formats.images.room import Ended, check_ended, never

MOST_PIXELS: Final = 50_000_000
"""Most pixels of an image; decoded, they have three bytes each."""
MOST_SIDE: Final = 65_535
"""Most pixels of a side, as in JPEG and GIF."""
MOST_STEPS: Final = 20 * MOST_PIXELS
"""Most pixels that the decoder of a file walks over: those of the image, in each scan of a JPEG."""
RGB: Final = 3
"""Bytes of a decoded pixel."""
_STRIP: Final = 1 << 20
"""Pixels converted at a time."""
_WITH_ALPHA: Final = frozenset({"RGBA", "LA", "PA", "RGBa", "La"})
_ON_WHITE: Final = (255, 255, 255, 255)


def pillow() -> Any:
    """Return the module `PIL.Image`.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise not_installed("Pillow, which reads images,", "vision", error) from error
    return Image


def _is_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


_Format = tuple[Callable[[bytes], bool], Callable[[bytes, Check], Plain], str, str]
_FORMATS: Final[tuple[_Format, ...]] = (
    (lambda data: data.startswith(png.SIGNATURE), png.read, "PIL.PngImagePlugin", "PngImageFile"),
    (lambda data: data.startswith(b"\xff\xd8\xff"), jpeg.read, "PIL.JpegImagePlugin", "JpegImageFile"),
    (_is_webp, webp.read, "PIL.WebPImagePlugin", "WebPImageFile"),
    (lambda data: data.startswith((b"GIF87a", b"GIF89a")), gif.read, "PIL.GifImagePlugin", "GifImageFile"),
)
"""For each format, a test of its first bytes, its reader here, and its class in Pillow."""


class _Steps(io.BytesIO):
    """A file whose reading ends once nobody waits for its image. Pillow reads 64 KiB between two of its steps."""

    def __init__(self, data: bytes, ended: Ended):
        super().__init__(data)
        self._ended = ended

    def read(self, size: int | None = -1, /) -> bytes:
        """See `io.BytesIO`."""
        check_ended(self._ended)
        return super().read(size)


def plain_of(data: bytes) -> Plain:
    """Return the plain file of an image, without decoding of anything.

    Raises:
        InvalidRequest: the file has no supported format, is damaged, or is beyond the bounds of sizes and work.
        ConfigError: Pillow is not installed.
    """
    _, reader, _, _ = _format_of(data)
    try:
        plain = reader(data, check_size)
    except DamagedImage as error:
        raise _damaged(error) from error
    if plain.steps > MOST_STEPS:
        height, width = plain.size
        most = MOST_STEPS // (height * width)
        raise InvalidRequest.of(
            "prompt",
            f"a JPEG of {width} x {height} may have {most} scans, got {plain.steps // (height * width)}; save it as a "
            "baseline JPEG",
        )
    return plain


def decode(data: bytes, ended: Ended = never) -> np.ndarray:
    """Decode a file as RGB, (height, width, 3) uint8. Its EXIF turns it, transparent pixels are on white.

    Of an animation, the first frame is decoded. The memory needed is that of `memory_of`.

    Args:
        data: the bytes of the file.
        ended: asked between the steps of the decoder.

    Raises:
        InvalidRequest: as in `plain_of`, or the pixels are damaged.
        ConfigError: Pillow is not installed, or lacks a decoder.
        RequestCancelled: nobody waits for the image any more.
    """
    plain, (_, _, module, name) = plain_of(data), _format_of(data)
    try:
        with getattr(import_module(module), name)(_Steps(plain.join(), ended)) as image:
            if (image.height, image.width) != plain.size:
                raise DamagedImage("its parts tell of two sizes")
            image.load()
            return pixels_of(image, turn_of(plain.exif, plain.xmp), ended)
    except RekindleError:
        raise
    except ImportError as error:
        raise ConfigError(f"this build of Pillow lacks a decoder ({error}); install the one of PyPI") from error
    except Exception as error:  # any error of a decoder means a damaged file
        raise _damaged(error) from error


def memory_of(plain: Plain) -> int:
    """Return the most bytes of memory for the decoding of a file."""
    height, width = plain.size
    return plain.memory + RGB * height * width


def pixels_of(image: Any, turn: int = 1, ended: Ended = never) -> np.ndarray:
    """Return the pixels of a PIL image as RGB, (height, width, 3) uint8, on white where it is transparent.

    Args:
        image: the image.
        turn: its turn by its EXIF, from 1 to 8.
        ended: asked between strips of the image.

    Raises:
        InvalidRequest: the numbers of the image have no known range.
        RequestCancelled: nobody waits for the image any more.
    """
    if image.mode in ("I", "F"):
        raise InvalidRequest.of(
            "prompt",
            f"an image with pixels of mode {image.mode!r} has no known range of brightness; scale it to 0 to 255, and "
            "convert it: image.convert('L')",
        )
    pixels, before = turned((image.height, image.width), turn)
    rows = max(1, _STRIP // image.width)
    table = _table(image) if image.mode in ("P", "L") else None
    for top in range(0, image.height, rows):  # the copies of conversions are those of a strip
        check_ended(ended)
        bottom = min(top + rows, image.height)
        strip = image.crop((0, top, image.width, bottom))
        before[top:bottom] = _rgb(strip) if table is None else _by_table(table, np.asarray(strip))
    return pixels


def _table(image: Any) -> np.ndarray:
    """Return the colour of each value of a pixel with one byte, (256,) uint32 with RGB in the first three bytes."""
    values = image.crop((0, 0, 256, 1))  # with its palette and its clear colour
    values.putdata(range(256))
    table = np.zeros((256, 4), np.uint8)
    table[:, :RGB] = _rgb(values)[0]
    return table.view(np.uint32)[:, 0]


def _by_table(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the pixels of values as RGB."""
    colours: np.ndarray = table[values].view(np.uint8).reshape(*values.shape, 4)[:, :, :RGB]
    return colours


def _rgb(image: Any) -> np.ndarray:
    """Return the pixels of a PIL image as RGB, or as gray, (height, width, 1)."""
    if image.mode.startswith("I;16"):
        return _in_a_byte(np.asarray(image))[:, :, None]
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        module, image = pillow(), image.convert("RGBA")
        image = module.alpha_composite(module.new("RGBA", image.size, _ON_WHITE), image)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def check_size(size: tuple[int, ...]) -> None:
    """Check (height, width) of an image.

    Raises:
        InvalidRequest: it has no pixels, more than `MOST_PIXELS`, or more than `MOST_SIDE` along a side.
    """
    check_pixels(size)
    height, width = size
    if max(height, width) > MOST_SIDE:
        raise InvalidRequest.of(
            "prompt", f"a side of an image may have {MOST_SIDE:,} pixels, got {width} x {height}; cut it"
        )


def check_pixels(size: tuple[int, ...]) -> None:
    """Check (height, width) of an image, or of one that is made of it, as `check_size` does without its sides."""
    height, width = size
    if height * width <= 0:
        raise InvalidRequest.of("prompt", f"an image must have pixels, got {width} x {height}")
    if height * width > MOST_PIXELS:
        raise InvalidRequest.of(
            "prompt",
            f"an image may have {MOST_PIXELS // 1_000_000} million pixels, got {width} x {height}; make it smaller",
        )


def _in_a_byte(values: np.ndarray) -> np.ndarray:
    """Return numbers of 16 bits as the nearest of 8."""
    return ((values.astype(np.uint32) * 255 + 32_767) // 65_535).astype(np.uint8)


def _format_of(data: bytes) -> _Format:
    pillow()
    for each in _FORMATS:
        if each[0](data):
            return each
    raise InvalidRequest.of("prompt", f"an image must be PNG, JPEG, WebP or GIF; got a file with {data[:8]!r} first")


def _damaged(error: Exception) -> InvalidRequest:
    return InvalidRequest.of("prompt", f"an image's file is damaged ({error}); save it again")
