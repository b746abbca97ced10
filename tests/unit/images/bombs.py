"""Small files of images, expensive for a reader without counts."""

import io
import struct
import zlib
from typing import Any

from PIL import Image


def file_of(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """Return a file of an image."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes, bits: int = 8, colour: int = 2) -> bytes:
    """Return a PNG with a header of any size, and some chunks."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + b"".join([header, *chunks, chunk(b"IEND", b"")])


def zeros(width: int, height: int) -> bytes:
    """Return the chunk with the pixels of an image of one bit a pixel, all zero."""
    row = bytes(1 + (width + 7) // 8)
    deflate = zlib.compressobj(9)
    return chunk(b"IDAT", b"".join(deflate.compress(row) for _ in range(height)) + deflate.flush())


def png_of_bits(width: int, height: int) -> bytes:
    """Return a PNG of one bit a pixel, with a palette and a clear colour: 50 million pixels in 6 KB."""
    extras = chunk(b"PLTE", b"\0\0\0\xff\xff\xff"), chunk(b"tRNS", b"\x80")
    return png(width, height, *extras, zeros(width, height), bits=1, colour=3)


def jpeg_of_scans(scans: int, width: int = 640, height: int = 480) -> bytes:
    """Return a progressive JPEG of gray with scans without a change; each walks over all coefficients."""
    out = bytearray(b"\xff\xd8\xff\xdb" + struct.pack(">H", 67) + b"\0" + b"\1" * 64)
    out += b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    # The code 0 is a run of at least 2^14 blocks at their end, 10 a single one.
    out += b"\xff\xc4" + struct.pack(">H", 2 + 17 + 2) + b"\x10" + bytes([1, 1] + [0] * 14) + b"\xe0\x00"
    bits, blocks = "", -(-width // 8) * -(-height // 8)
    while blocks > 0:
        run = min(blocks, 32767)
        bits += "0" + format(run - (1 << 14), "014b") if run >= 1 << 14 else "10" * run
        blocks -= run
    bits += "1" * (-len(bits) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    for index in range(scans):
        out += b"\xff\xda" + struct.pack(">HB", 8, 1) + b"\1\0" + bytes([1, 63, 0x10 if index else 0x01]) + data
    return bytes(out + b"\xff\xd9")


def jpeg_of_notes(count: int, length: int = 100) -> bytes:
    """Return a JPEG of 8 x 8 pixels with so many segments of EXIF."""
    data = file_of(Image.new("RGB", (8, 8), (200, 10, 10)), "JPEG")
    return data[:2] + (b"\xff\xe1" + struct.pack(">H", 8 + length) + b"Exif\0\0" + bytes(length)) * count + data[2:]


def gif_of_frames(count: int, width: int = 60_000, height: int = 800) -> bytes:
    """Return a GIF of so many frames of many pixels each, after a red frame of 4 x 4."""
    head = file_of(Image.new("RGB", (4, 4), "red"), "GIF").removesuffix(b";")
    return head + (b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\2\2\x4c\1\0") * count + b";"


def webp_of_frames(count: int) -> bytes:
    """Return an animated WebP of so many frames, the first one red."""
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = file_of(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    last = data.rindex(b"ANMF")
    data = data[:last] + data[last:] * (count - 1)
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
