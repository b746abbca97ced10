"""WebP: the first frame, without metadata."""

from typing import Final

from rekindle.formats.images.containers.plain import MOST_NOTE, Check, Counter, DamagedImage, Plain, joined

_TABLE: Final = 21 << 10
"""Bytes of the codes of one group in a file without loss. libwebp makes room for all groups at first."""
_MOST_GROUPS: Final = 1 << 16
_FEWEST_BITS: Final = 20
"""The fewest bits of a group's codes in the file: five codes of four bits."""
_CANVAS: Final = 23
"""Bytes of a pixel: two canvases, the frame, its copy and Pillow's image of four bytes each, and what a row takes."""
_METADATA_FLAGS: Final = 0x2C
"""Flags of the header for a profile, EXIF and XMP."""


def read(data: bytes, check: Check) -> Plain:
    """Return the plain file of the first frame of a WebP.

    Args:
        data: the file.
        check: checks the size; may raise any error.

    Raises:
        DamagedImage: the file is damaged, or has too many parts.
    """
    header, size, notes = b"", None, {b"EXIF": b"", b"XMP ": b""}
    pieces: list[tuple[int, int]] = []
    counter, place, groups, is_over = Counter(), 12, 0, False
    while place + 8 <= len(data):
        counter.add()
        kind, length = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        start, end = place + 8, place + 8 + length + length % 2
        if kind in (b"VP8X", b"ANIM", b"ALPH", b"VP8 ", b"VP8L", b"ANMF") and end > len(data) + length % 2:
            raise DamagedImage("it is cut")
        if kind == b"VP8X" and not header and not pieces:
            header = data[start : start + 10]
            if len(header) < 10 or length < 10:
                raise DamagedImage("its header is cut")
            size = 1 + int.from_bytes(header[7:10], "little"), 1 + int.from_bytes(header[4:7], "little")
            check(size)
        elif kind in (b"ANIM", b"ALPH", b"VP8 ", b"VP8L", b"ANMF") and not is_over:
            pieces.append((place, end))
            is_over = kind in (b"VP8 ", b"VP8L", b"ANMF")
            if is_over:
                inner = _bitstream(data, place, end, counter) if kind == b"ANMF" else (kind, start)
                own = _size(data, *inner)
                check(own)
                size = size or own
                groups = _groups(own, end - start) if inner[0] == b"VP8L" else 0
        elif kind in notes and not notes[kind]:
            notes[kind] = data[start : min(start + length, start + MOST_NOTE)]
        place = end
    if size is None or not is_over:
        raise DamagedImage("it has no frame")
    pixels = size[0] * size[1]

    def join() -> bytes:
        flags = bytes((header[0] & ~_METADATA_FLAGS & 0xFF,)) + header[1:] if header else b""
        body = (b"VP8X\x0a\0\0\0" + flags if header else b"") + joined(data, pieces)
        body += b"\0" * (len(body) % 2)
        return b"RIFF" + (len(body) + 4).to_bytes(4, "little") + b"WEBP" + body

    return Plain(size, join, _CANVAS * pixels + 2 * len(data) + groups * _TABLE, pixels, notes[b"EXIF"], notes[b"XMP "])


def _bitstream(data: bytes, place: int, end: int, counter: Counter) -> tuple[bytes, int]:
    """Return the kind and the start of the pixels in a frame of an animation."""
    place += 24
    while place + 8 <= end:
        counter.add()
        kind, length = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        if kind in (b"VP8 ", b"VP8L"):
            return kind, place + 8
        place += 8 + length + length % 2
    raise DamagedImage("its frame has no pixels")


def _size(data: bytes, kind: bytes, start: int) -> tuple[int, int]:
    """Return (height, width) in the header of a frame."""
    head = data[start : start + 10]
    if kind == b"VP8L":
        if len(head) < 5 or head[0] != 0x2F:
            raise DamagedImage("its frame has no header")
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    if len(head) < 10 or head[3:6] != b"\x9d\x01\x2a":
        raise DamagedImage("its frame has no header")
    width, height = int.from_bytes(head[6:8], "little") & 0x3FFF, int.from_bytes(head[8:10], "little") & 0x3FFF
    return height, width


def _groups(size: tuple[int, int], length: int) -> int:
    """Return the most groups of codes in a frame without loss: one for 4 x 4 pixels, with bits for its codes."""
    return min(-(-size[0] // 4) * -(-size[1] // 4), _MOST_GROUPS, length * 8 // _FEWEST_BITS)
