"""Decoding of images as RGB, within bounds. Nothing of a file is trusted."""

import io
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np

from rekindle.core.errors import ConfigError, InvalidRequest, not_installed

MOST_PIXELS: Final = 50_000_000
"""Most pixels of an image; decoded, they have three bytes each."""
_ORIENTATION: Final = 0x0112
"""The tag of EXIF with the turn of a photo."""
_TURNS: Final = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
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


_FORMATS: Final[dict[str, tuple[Callable[[bytes], bool], str, str]]] = {
    "PNG": (lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"), "PIL.PngImagePlugin", "PngImageFile"),
    "JPEG": (lambda data: data.startswith(b"\xff\xd8\xff"), "PIL.JpegImagePlugin", "JpegImageFile"),
    "WebP": (_is_webp, "PIL.WebPImagePlugin", "WebPImageFile"),
    "GIF": (lambda data: data.startswith((b"GIF87a", b"GIF89a")), "PIL.GifImagePlugin", "GifImageFile"),
}
"""For each format, a test of its first bytes and the class in Pillow. `Image.open` would warn of sizes refused here."""


def size_of(data: bytes) -> tuple[int, int]:
    """Return (height, width) of a file from its header, before a turn by its EXIF.

    Raises:
        InvalidRequest: the file has no supported format, too many pixels, or a damaged header.
        ConfigError: Pillow is not installed.
    """
    with _open(data) as image:
        return image.height, image.width


def decode(data: bytes) -> np.ndarray:
    """Decode a file as RGB, (height, width, 3) uint8. Its EXIF turns it, transparent pixels are on white.

    Of a GIF, the first frame is decoded.

    Raises:
        InvalidRequest: as in `size_of`, or the pixels are damaged.
        ConfigError: Pillow is not installed.
    """
    with _open(data) as image:
        try:
            image.load()
            return pixels_of(_turned(image))
        except Exception as error:  # any error of a decoder means a damaged file
            raise _damaged(error) from error


def pixels_of(image: Any) -> np.ndarray:
    """Return the pixels of a PIL image as RGB, (height, width, 3) uint8, on white where it is transparent.

    Raises:
        InvalidRequest: the numbers of the image have no known range.
    """
    module = pillow()
    if image.mode.startswith("I;16"):
        return np.repeat(_in_a_byte(np.asarray(image))[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise InvalidRequest.of(
            "prompt",
            f"an image with pixels of mode {image.mode!r} has no known range of brightness; scale it to 0 to 255, and "
            "convert it: image.convert('L')",
        )
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        image = module.alpha_composite(module.new("RGBA", image.size, _ON_WHITE), image)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def check_size(size: tuple[int, ...]) -> None:
    """Check (height, width) of an image.

    Raises:
        InvalidRequest: it has no pixels, or more than `MOST_PIXELS`.
    """
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


def _open(data: bytes) -> Any:
    """Return the opened image of a file, not decoded yet, within the bounds."""
    pillow()
    reader = next(((module, name) for is_format, module, name in _FORMATS.values() if is_format(data)), None)
    if reader is None:
        raise InvalidRequest.of(
            "prompt", f"an image must be PNG, JPEG, WebP or GIF; got a file with {data[:8]!r} first"
        )
    module, name = reader
    try:
        image = getattr(import_module(module), name)(io.BytesIO(data))
    except ImportError as error:
        raise ConfigError(f"this build of Pillow lacks a decoder ({error}); install the one of PyPI") from error
    except Exception as error:  # any error of a reader means a damaged header
        raise _damaged(error) from error
    check_size((image.height, image.width))
    return image


def _turned(image: Any) -> Any:
    """Return an image as its EXIF turns it. A damaged EXIF turns nothing."""
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION))
    except Exception:  # a picture can be seen without its EXIF
        return image
    if turn is None:
        return image
    turned = image.transpose(getattr(pillow().Transpose, turn))
    turned.info = image.info  # with its clear colour
    return turned


def _damaged(error: Exception) -> InvalidRequest:
    return InvalidRequest.of("prompt", f"an image's file is damaged ({error}); save it again")
