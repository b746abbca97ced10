"""JPEG: the segments with tables, frame and scans, and the number of scans.

Each scan may walk over the coefficients of the whole image for a few bytes of the file, and libjpeg has no limit of
scans.
"""

import re
from typing import Final

from rekindle.formats.images.containers.plain import MOST_NOTE, Check, Counter, DamagedImage, Plain, joined

MOST_SCANS: Final = 100
"""Most scans; encoders write about ten."""
MOST_TABLES: Final = 1000
"""Most segments with tables."""
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_TABLES: Final = frozenset({0xC4, 0xCC, 0xDB, 0xDD})
"""Markers of the tables of Huffman and arithmetic codes, of quantization, and of the interval of restarts."""
_SCAN: Final = 0xDA
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a length."""
_JFIF, _ADOBE = 0xE0, 0xEE
"""Markers of segments about colours."""
_NOTES: Final = frozenset({0xDC, 0xFE, *range(0xE0, 0xF0)})
"""Markers of comments, of data of applications, and of a late number of lines."""
_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""A marker that ends the data of a scan."""
_NEXT: Final = re.compile(rb"\xff[^\x00\xff]")
"""A marker outside of scans, behind fill bytes or not."""


def read(data: bytes, check: Check) -> Plain:
    """Return the plain file of a JPEG: of several images, the first one.

    Args:
        data: the file.
        check: checks the size; may raise any error.

    Raises:
        DamagedImage: the file is damaged, or has too many parts.
    """
    pieces: list[tuple[int, int]] = [(0, 2)]
    frame, notes = None, {_EXIF: b"", _XMP: b""}
    counter, tables, scans, place = Counter(), 0, 0, 2
    colours: set[int] = set()
    while place < len(data):
        counter.add()
        start, marker = _marker(data, place)
        if marker is None or marker == 0xD9:
            pieces.append((start, start + 2))
            break
        if marker in _ALONE:
            place = start + 2
            continue
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        if end < start + 4 or end > len(data):
            if scans:
                break  # the scans before may have all pixels
            raise DamagedImage("a segment is cut")
        if marker in _FRAMES:
            if frame is not None:
                raise DamagedImage("it has several frames")
            frame = data[start:end]
            check(_size(frame))
        elif marker in _TABLES:
            tables += 1
        elif marker == _SCAN:
            scans += 1
            match = _MARKER.search(data, end)
            end = len(data) if match is None else match.start()
        elif marker not in _NOTES:
            raise DamagedImage(f"it has the unknown marker {marker:#x}")
        else:
            for name in notes:
                if marker == 0xE1 and not notes[name] and data.startswith(name, start + 4):
                    notes[name] = data[start + 4 + len(name) : min(end, start + MOST_NOTE)]
        if scans > MOST_SCANS or tables > MOST_TABLES:
            raise DamagedImage(f"it has more than {MOST_SCANS} scans or {MOST_TABLES:,} tables")
        is_colour = marker in (_JFIF, _ADOBE) and marker not in colours
        if is_colour:
            colours.add(marker)
        if marker not in _NOTES or is_colour:
            pieces.append((start, end))
        place = end
    if frame is None or not scans:
        raise DamagedImage("it has no pixels")
    (height, width), planes = _size(frame), frame[9]
    pixels = height * width
    has_all = scans > 1 or frame[1] not in (0xC0, 0xC1)  # the coefficients of the whole image are in memory
    memory = pixels * ((1 if planes == 1 else 4) + (2 * planes if has_all else 0))
    return Plain(
        (height, width), lambda: joined(data, pieces), memory, pixels * max(1, scans), notes[_EXIF], notes[_XMP]
    )


def _size(frame: bytes) -> tuple[int, int]:
    """Return (height, width) in the segment of a frame."""
    if len(frame) < 10:
        raise DamagedImage("its size is cut")
    return int.from_bytes(frame[5:7], "big"), int.from_bytes(frame[7:9], "big")


def _marker(data: bytes, place: int) -> tuple[int, int | None]:
    """Return place and number of the next marker; None for the number at the end of the data."""
    match = _NEXT.search(data, place)
    return (len(data), None) if match is None else (match.start(), data[match.start() + 1])
