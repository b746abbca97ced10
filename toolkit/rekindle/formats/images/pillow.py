"""Pillow, imported when the first image needs it."""

from typing import Any

from rekindle.core.errors import not_installed


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
