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
        grid: rows and columns of its tokens, which are adjacent, for positions by row and column; None for positions
            by index.
        time: the position of its tokens in time, after its first one.
        span: the number of positions before those of the next token; None for its longer side.
    """

    digest: bytes
    positions: Any = field(compare=False)
    source: PictureSource = field(compare=False, repr=False)
    grid: tuple[int, int] | None = None
    time: int = 0
    span: int | None = None

    def moved(self, by: int) -> "Picture":
        """Return the image with its tokens so many places later."""
        return replace(self, positions=self.positions + by)

    @property
    def columns(self) -> int:
        """Columns of its tokens."""
        return self.tokens if self.grid is None else self.grid[1]

    @property
    def tokens(self) -> int:
        """Number of tokens of the image in the prompt."""
        return len(self.positions)

    def run_at(self, end: int) -> tuple[int, int]:
        """Return the range of adjacent tokens of the image with the last token before `end`; empty without one."""
        import numpy as np  # the terminal reads its arguments without it

        count = int(np.searchsorted(self.positions, end))
        if not count:
            return end, end
        offsets = self.positions - np.arange(len(self.positions))  # equal in a run
        run = self.positions[offsets == offsets[count - 1]]
        return int(run[0]), int(run[-1]) + 1

    def patches(self) -> Any:
        """Return the `Patches` of the image. It decodes the image, so call it in a worker thread.

        Raises:
            InvalidRequest: the file of the image is damaged.
        """
        return self.source.patches()


def shift_behind(pictures: Sequence[Picture]) -> int:
    """Return the position of a token behind images minus its index: an image moves on by its span alone."""
    return sum((max(each.grid) if each.span is None else each.span) - each.tokens for each in pictures if each.grid)


def coordinates_of(pictures: Sequence[Picture], start: int, end: int) -> Any:
    """Return the time, row and column of the tokens from `start` to `end` of a prompt, (3, tokens) int32.

    Those of a text are all its position. An image has one time, the position after the token before it. Its rows and
    columns count from there, and the next position is after the last of both (Wang et al., 2024, arXiv:2409.12191).

    Returns:
        None if all coordinates are the index of the token.
    """
    import numpy as np  # the terminal reads its arguments without it

    before = [picture for picture in pictures if picture.grid is not None and picture.positions[0] < end]
    if not before:
        return None
    coordinates = np.tile(np.arange(start, end, dtype=np.int32), (3, 1))
    shift = 0
    for picture in before:
        first, last = np.clip((picture.positions[0], picture.positions[-1] + 1), start, end) - start
        index = np.arange(first, last) + start - picture.positions[0]
        coordinates[:, first:last] = picture.positions[0] + shift
        coordinates[0, first:last] += picture.time
        coordinates[1:, first:last] += np.stack(divmod(index, picture.columns))
        moved = shift_behind([picture])
        coordinates[:, last:] += moved
        shift += moved
    return coordinates


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
