"""The turn of a photo by EXIF, or else by XMP."""

import re
from typing import Final

import numpy as np

_TAG: Final = 0x0112
_BYTES: Final = {1: 1, 3: 2, 4: 4}
"""Bytes of a number by its type."""
_XMP: Final = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
SIDEWAYS: Final = frozenset({5, 6, 7, 8})
"""Turns with height and width exchanged."""


def turn_of(exif: bytes, xmp: bytes) -> int:
    """Return the turn in metadata, from 1 to 8; 1 leaves an image as it is. Damaged metadata turns nothing."""
    turn = _turn_in(exif.removeprefix(b"Exif\0\0"))
    if turn is None:
        match = _XMP.search(xmp)
        turn = 1 if match is None else int(match[1])
    return turn if 1 <= turn <= 8 else 1


def _turn_in(exif: bytes) -> int | None:
    """Return the number of the tag in the first directory of EXIF; None without one."""
    if exif[:4] not in (b"II*\0", b"MM\0*"):
        return None

    def number(start: int, length: int) -> int:
        return int.from_bytes(exif[start : start + length], "little" if exif[:1] == b"I" else "big")

    first = number(4, 4)
    for index in range(min(number(first, 2), len(exif) // 12)):
        entry = first + 2 + 12 * index
        if number(entry, 2) == _TAG:
            length = _BYTES.get(number(entry + 2, 2))
            is_one = number(entry + 4, 4) == 1 and entry + 12 <= len(exif)
            return number(entry + 8, length) if length is not None and is_one else None
    return None


def turned(size: tuple[int, int], turn: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an empty image after a turn, and the view by rows and columns before the turn.

    Args:
        size: (height, width) before the turn.
        turn: see `turn_of`.

    Returns:
        Both (height, width, 3) uint8; the first one is in memory order.
    """
    height, width = size
    image = np.empty((width, height, 3) if turn in SIDEWAYS else (height, width, 3), np.uint8)
    before = image.swapaxes(0, 1) if turn in SIDEWAYS else image
    if turn in (3, 4, 6, 7):
        before = before[::-1]
    if turn in (2, 3, 7, 8):
        before = before[:, ::-1]
    return image, before
