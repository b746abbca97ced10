"""A file of an image with nothing but pixels, and the bounds of all formats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

MOST_BLOCKS: Final = 100_000
"""Most parts of a file: segments, chunks, or the blocks of a frame. Each part takes a step in Python."""
MOST_NOTE: Final = 1 << 16
"""Most bytes of EXIF or XMP read for the turn of a photo."""


Check: TypeAlias = Callable[[tuple[int, int]], None]
"""Function with an error for a (height, width) out of bounds, before the rest of a file is read."""


class DamagedImage(Exception):
    """A file breaks the rules of the format, or has more parts than any picture."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A file of one frame without metadata, and the cost of decoding.

    Attributes:
        size: (height, width) before a turn.
        join: returns the file.
        memory: the most bytes for the decoder of the format.
        steps: the number of pixels on the way of the decoder.
        exif, xmp: the beginning of metadata with a turn; empty for none.
    """

    size: tuple[int, int]
    join: Callable[[], bytes] = field(repr=False)
    memory: int
    steps: int
    exif: bytes = b""
    xmp: bytes = b""


@dataclass(slots=True)
class Counter:
    """A count of the parts of a file."""

    count: int = 0

    def add(self) -> None:
        """Count a part.

        Raises:
            DamagedImage: there are more than `MOST_BLOCKS`.
        """
        self.count += 1
        if self.count > MOST_BLOCKS:
            raise DamagedImage(f"it has more than {MOST_BLOCKS:,} parts")


def joined(data: bytes, pieces: Sequence[tuple[int, int]]) -> bytes:
    """Return pieces of a file, each from a start to an end, in sequence."""
    view = memoryview(data)
    return b"".join(view[start:end] for start, end in pieces)
