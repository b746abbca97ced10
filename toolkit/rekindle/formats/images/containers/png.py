"""PNG: the chunks with header, palette and pixels, without texts and profiles, which may be compressed."""

import re
import zlib
from typing import Final

from rekindle.formats.images.containers.plain import MOST_NOTE, Check, Counter, DamagedImage, Plain, joined

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_KEPT: Final = frozenset({b"PLTE", b"tRNS"})
_BYTES: Final = {0: 2, 2: 4, 3: 1, 4: 4, 6: 4}
"""Bytes of a pixel in Pillow by the type of colours: gray of 16 bits, RGB, an index, gray and RGB with alpha."""
_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_XMP: Final = b"XML:com.adobe.xmp\0"
_RAW_EXIF: Final = b"Raw profile type exif\0"
_HEX: Final = re.compile(rb"[0-9a-fA-F\s]*")


def read(data: bytes, check: Check) -> Plain:
    """Return the plain file of a PNG: of an animation, the image for other viewers.

    Args:
        data: the file.
        check: checks the size; may raise any error.

    Raises:
        DamagedImage: the file is damaged, or has too many parts.
    """
    header, sum_of_header = data[16:29], data[29:33]
    if data[8:16] != b"\0\0\0\x0dIHDR" or sum_of_header != zlib.crc32(b"IHDR" + header).to_bytes(4, "big"):
        raise DamagedImage("it has no header")
    width, height = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")
    check((height, width))
    if header[9] not in _BYTES:
        raise DamagedImage("its colours are of no known type")
    pieces, pixels = [(0, 33)], list[tuple[int, int]]()
    exif, xmp = b"", b""
    counter, place, is_over = Counter(), 33, False
    while place + 8 <= len(data):
        counter.add()
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        start, end = place + 8, place + 8 + length
        place = end + 4
        is_over = is_over or (bool(pixels) and kind != b"IDAT")
        if kind == b"IEND":
            break
        if kind == b"IDAT" and not is_over:
            pixels.append((start, min(end, len(data))))
        elif place > len(data):
            break  # the pixels may be whole
        elif kind in _KEPT and not pixels:
            pieces.append((start - 8, place))
        elif kind == b"eXIf":
            exif = data[start : min(end, start + MOST_NOTE)]
        elif kind in (b"iTXt", b"tEXt", b"zTXt"):
            exif, xmp = _noted(kind, data[start : min(end, start + MOST_NOTE)], exif, xmp)
    if not pixels:
        raise DamagedImage("it has no pixels")
    if len(pieces) > 3:
        raise DamagedImage("it has several palettes")

    def join() -> bytes:
        whole = joined(data, pixels)
        check = zlib.crc32(whole, zlib.crc32(b"IDAT"))
        parts = (len(whole).to_bytes(4, "big"), b"IDAT", whole, check.to_bytes(4, "big"), _END)
        return joined(data, pieces) + b"".join(parts)

    count, depth, colours = height * width, header[8], header[9]
    row = 2 * (-(-width * depth * _CHANNELS[colours] // 8))  # with the one before
    return Plain((height, width), join, count * _BYTES[colours] + row + 2 * len(data), count, exif, xmp)


_END: Final = b"\0\0\0\0IEND\xaeB`\x82"


def _noted(kind: bytes, text: bytes, exif: bytes, xmp: bytes) -> tuple[bytes, bytes]:
    """Return EXIF and XMP after a chunk with text."""
    if kind == b"iTXt" and text.startswith(_XMP):
        flag, rest = text[len(_XMP) : len(_XMP) + 1], text[len(_XMP) + 2 :]
        value = rest.partition(b"\0")[2].partition(b"\0")[2]
        return exif, _inflated(value) if flag == b"\1" else value
    if kind in (b"tEXt", b"zTXt") and text.startswith(_RAW_EXIF):
        value = text[len(_RAW_EXIF) :]
        value = _inflated(value[1:]) if kind == b"zTXt" else value
        digits = value.strip().partition(b"\n")[2].partition(b"\n")[2]  # behind a name and a length
        match = _HEX.match(digits)
        plain = b"" if match is None else b"".join(match[0].split())
        return exif or bytes.fromhex(plain[: len(plain) // 2 * 2].decode()), xmp
    return exif, xmp


def _inflated(value: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(value, MOST_NOTE)
    except zlib.error:
        return b""  # a picture can be seen without its notes
