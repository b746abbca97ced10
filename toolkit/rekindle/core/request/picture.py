"""An image in the prompt of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol


class PictureSource(Protocol):
    """Interface of the pixels of an image; picklable."""

    def patches(self) -> Any:
        """Return the `Patches` of the image. May take a second, in any thread."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image in the prompt of a request; picklable. Pictures with equal digests are equal.

    Attributes:
        digest: 16 bytes, unique to the pixels, the size and the settings of their processing.
        positions: indices of the image's tokens in the prompt, ascending, (tokens,) int32.
        source: the pixels.
    """

    digest: bytes
    positions: Any = field(compare=False)
    source: PictureSource = field(compare=False, repr=False)

    def moved(self, by: int) -> "Picture":
        """Return the image with its tokens so many places later."""
        return replace(self, positions=self.positions + by)

    @property
    def tokens(self) -> int:
        """Number of tokens of the image in the prompt."""
        return len(self.positions)

    def patches(self) -> Any:
        """Return the `Patches` of the image. It decodes the image, so call it in a worker thread.

        Raises:
            InvalidRequest: the file of the image is damaged.
        """
        return self.source.patches()


def page_marks(pictures: Sequence[Picture], page_size: int) -> dict[int, bytes]:
    """Return the marks of images for the keys of pages, by page.

    The mark of a page names each image in it: its digest, the index of its first token there, and the places of its
    tokens in the page. The ids of these tokens are the same for all images.
    """
    marks: dict[int, bytes] = {}
    for picture in pictures:
        first = 0
        for page, places in groupby(picture.positions.tolist(), key=lambda position: position // page_size):
            bits = sum(1 << position % page_size for position in places)
            mark = picture.digest + first.to_bytes(4, "little") + bits.to_bytes(-(-page_size // 8), "little")
            marks[page] = marks.get(page, b"") + mark
            first += bits.bit_count()
    return marks
