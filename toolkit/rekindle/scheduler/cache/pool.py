"""The free list of the page pool. Plain host data: which pages are free, never what is in them."""

from collections import deque
from collections.abc import Iterable

from rekindle.errors import RekindleError
from rekindle.page import NULL_PAGE


class PagePool:
    """Hands out page ids and takes them back.

    Invariant: every page but the null page is either free or held by exactly one owner.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self._free = deque(range(NULL_PAGE + 1, num_pages))

    @property
    def free(self) -> int:
        """How many pages can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages, all or none; ask `free` first.

        Raises:
            OutOfPages: fewer are free, and none was taken.
        """
        if count > len(self._free):
            raise OutOfPages(f"{count} pages asked, {len(self._free)} of {self.num_pages - 1} are free")
        return [self._free.popleft() for _ in range(count)]

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back, to be reused after all that were free before."""
        self._free.extend(pages)


class OutOfPages(RekindleError):
    """An allocation larger than the free list: a caller did not ask first."""
