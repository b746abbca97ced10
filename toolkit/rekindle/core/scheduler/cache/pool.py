"""The free list of the page pool. It knows which pages are free, not what is in them."""

from collections import deque
from collections.abc import Iterable

from rekindle.core.page import NULL_PAGE


class PagePool:
    """The ids of free pages.

    Invariant: every page but the null page is either free or held by exactly one owner.

    Args:
        num_pages: pages with the null page, which is the first.
        first: the number of the null page.
    """

    def __init__(self, num_pages: int, first: int = NULL_PAGE):
        self._free = deque(range(first + 1, first + num_pages))

    @property
    def free(self) -> int:
        """Return how many pages can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, which must be free."""
        assert count <= self.free, f"{count} pages were asked for, and {self.free} are free"
        return [self._free.popleft() for _ in range(count)]

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back, to be reused after all that were free before."""
        self._free.extend(pages)
