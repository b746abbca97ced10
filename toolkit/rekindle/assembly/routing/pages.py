"""Page hashes of prompts, and the pages expected in a lane soon."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from rekindle.core.page import page_key
from rekindle.core.request.picture import page_marks
from rekindle.core.request.request import Request


def pages_of(request: Request, page_size: int) -> tuple[int, ...]:
    """Return a hash for each whole page of a request's initial tokens, made of all tokens up to the page's end."""
    tokens, page, marks = request.initial_tokens, hash(request.namespace), page_marks(request.pictures, page_size)
    pages = []
    for index in range(len(tokens) // page_size):
        page = page_after(page, page_key(tokens[index * page_size : (index + 1) * page_size], marks.get(index, b"")))
        pages.append(page)
    return tuple(pages)


def page_after(before: int, key: bytes) -> int:
    """Return the hash of a page from its key, given the hash of the previous page or of the namespace."""
    return hash((before, key))


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Number of requests with each page, by its hash."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, pages: Iterable[int]) -> None:
        """Count the pages of one more request."""
        self.counts.update(pages)

    def remove(self, pages: Sequence[int]) -> None:
        """Count the pages of one request less."""
        self.counts.subtract(pages)
        for page in pages:
            if not self.counts[page]:
                del self.counts[page]

    def prefix(self, pages: Sequence[int]) -> int:
        """Return the length of the longest counted prefix of `pages`, in pages."""
        return sum(1 for _ in takewhile(self.counts.__contains__, pages))
