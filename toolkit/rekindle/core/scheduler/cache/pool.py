"""Free list of the page pool, without the contents of pages."""

from collections import deque
from collections.abc import Iterable

from rekindle.core.page import NULL_PAGE


class PagePool:
    """The ids of free pages.

    Invariant: every page except the null page is either free or held by exactly one owner.

    Args:
        num_pages: pages including the null page, the first one.
        first: the number of the null page.
    """

    def __init__(self, num_pages: int, first: int = NULL_PAGE):
        self._free = deque(range(first + 1, first + num_pages))

    @property
    def free(self) -> int:
        """The number of free pages."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free pages; the caller checks the number first."""
        assert count <= self.free, f"{count} pages requested, and {self.free} are free"
        return [self._free.popleft() for _ in range(count)]

    def release(self, pages: Iterable[int]) -> None:
        """Return pages to the pool. Pages already free are reused first."""
        self._free.extend(pages)
