"""Files of images of all formats, changed by chance, as by an attacker or a bad disk."""

import struct
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Final

import numpy as np
from PIL import Image

from tests.unit.images.bombs import file_of, gif_of_frames, jpeg_of_notes, jpeg_of_scans, png_of_bits, webp_of_frames

Mutation = Callable[[bytearray, Random], bytearray]
"""Function for a change of a file of at least one byte."""
_EXTREMES: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@cache
def originals() -> tuple[bytes, ...]:
    """Return whole files: of each format and mode, animated, progressive, interlaced, turned, and with metadata."""
    colours = Image.fromarray(np.random.default_rng(0).integers(0, 255, (37, 53, 3), np.uint8))
    smooth = Image.linear_gradient("L").resize((160, 120)).convert("RGB")
    frames = [Image.new("RGB", (20, 30), colour) for colour in ("red", "green", "blue")]
    clear = colours.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    exif = Image.Exif()
    exif[0x0112] = 6
    xmp = b'<x:xmpmeta tiff:Orientation="8"/>'
    files = [file_of(colours.convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")]
    files += [file_of(colours, "PNG", exif=exif), file_of(colours.convert("P"), "PNG", transparency=0)]
    files += [file_of(frames[0], form, save_all=True, append_images=frames[1:]) for form in ("PNG", "GIF", "WEBP")]
    files += [file_of(colours.convert(mode), "JPEG") for mode in ("L", "RGB", "CMYK")]
    files += [
        file_of(smooth, "JPEG", progressive=True, exif=exif),
        file_of(smooth, "JPEG", xmp=xmp, restart_marker_rows=1),
    ]
    files += [file_of(smooth, "GIF", interlace=1), file_of(smooth, "GIF", interlace=0, transparency=3)]
    files += [file_of(clear, "WEBP", lossless=True, exif=exif), file_of(clear, "WEBP", quality=50, xmp=xmp)]
    files += [png_of_bits(300, 200), jpeg_of_scans(30), jpeg_of_notes(40), gif_of_frames(5), webp_of_frames(5)]
    return tuple(files)


def _bytes(data: bytearray, random: Random) -> bytearray:
    for _ in range(random.choice((1, 1, 2, 5, 40))):
        data[random.randrange(len(data))] = random.randrange(256)
    return data


def _number(data: bytearray, random: Random) -> bytearray:
    """Write an extreme number over some bytes, such as a length or a side."""
    form = random.choice((">H", "<H", ">I", "<I"))
    size = struct.calcsize(form)
    place = random.randrange(min(len(data), random.choice((64, 1 << 20))))
    data[place : place + size] = struct.pack(form, random.choice(_EXTREMES) & (1 << 8 * size) - 1)
    return data


def _bit(data: bytearray, random: Random) -> bytearray:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return data


def _cut(data: bytearray, random: Random) -> bytearray:
    return data[: random.randrange(1, len(data) + 1)]


def _without(data: bytearray, random: Random) -> bytearray:
    start = random.randrange(len(data))
    del data[start : start + random.choice((1, 2, 4, 100))]
    return data


def _twice(data: bytearray, random: Random) -> bytearray:
    start, length = random.randrange(len(data)), random.choice((1, 4, 30, 500, 5_000))
    data[start:start] = data[start : start + length] * random.choice((1, 1, 2, 100))
    return data


def _joined(data: bytearray, random: Random) -> bytearray:
    """Go on with the rest of another file."""
    other = random.choice(originals())
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other)) :]


MUTATIONS: Final[tuple[Mutation, ...]] = (_bytes, _number, _number, _bit, _cut, _without, _twice, _joined)


def mutated(seed: int) -> bytes:
    """Return the file of a seed: one of the originals after one to three mutations."""
    random = Random(seed)
    data = bytearray(random.choice(originals()))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(MUTATIONS)(data or bytearray(1), random)
    return bytes(data)
