"""GIF: the palette, the clear colour and the pixels of the first frame."""

from rekindle.formats.images.containers.plain import Check, Counter, DamagedImage, Plain, joined

_EXTENSION, _FRAME, _END = 0x21, 0x2C, 0x3B
_CONTROL = 0xF9
"""The label of the extension with the clear colour."""


def read(data: bytes, check: Check) -> Plain:
    """Return the plain file of the first frame of a GIF.

    Args:
        data: the file.
        check: checks the size; may raise any error.

    Raises:
        DamagedImage: the file is damaged, or has too many parts.
    """
    if len(data) < 13:
        raise DamagedImage("it is cut")
    size = _pair(data, 6)
    check((max(1, size[1]), max(1, size[0])))  # a frame may be larger
    place = 13 + _palette(data[10])
    head, clear, counter = (0, place), b"", Counter()
    while place < len(data):
        counter.add()
        kind = data[place]
        if kind == _END:
            break
        if kind == _EXTENSION:
            control = data[place + 1 : place + 2] == bytes((_CONTROL,)) and data[place + 3 : place + 7]
            if control and control[0] & 1 and len(control) == 4:
                clear = b"!\xf9\4\1\0\0" + control[3:] + b"\0"
            place = _after_blocks(data, place + 2, counter)
        elif kind == _FRAME:
            return _framed(data, place, check, head, clear, counter)
        else:
            place += 1  # as other readers do
    raise DamagedImage("it has no frame")


def _framed(data: bytes, place: int, check: Check, head: tuple[int, int], clear: bytes, counter: Counter) -> Plain:
    if place + 11 > len(data):
        raise DamagedImage("it is cut")
    size, (x, y), (wide, high) = _pair(data, 6), _pair(data, place + 1), _pair(data, place + 5)
    width, height = max(size[0], x + wide), max(size[1], y + high)
    check((height, width))
    start = place + 10 + _palette(data[place + 9])
    end = _after_blocks(data, start + 1, counter)
    pixels = width * height
    return Plain(
        (height, width),
        lambda: joined(data, [head]) + clear + joined(data, [(place, end)]) + b";",
        2 * pixels + 2 * (end - place),
        pixels,
    )


def _pair(data: bytes, place: int) -> tuple[int, int]:
    return int.from_bytes(data[place : place + 2], "little"), int.from_bytes(data[place + 2 : place + 4], "little")


def _palette(flags: int) -> int:
    """Return the number of bytes of a palette by the flags before."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, place: int, counter: Counter) -> int:
    """Return the place behind blocks with lengths, up to an empty block."""
    while place < len(data) and data[place]:
        counter.add()
        place += 1 + data[place]
    return min(place + 1, len(data))
