"""Page hashes of prompts, and the pages expected in a lane soon."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from rekindle.core.request.request import Request


def pages_of(request: Request, page_size: int) -> tuple[int, ...]:
    """Return a hash for each whole page of a request's initial tokens, made of all tokens up to the page's end."""
    tokens, page = request.initial_tokens, hash(request.namespace)
    pages = []
    for start in range(0, len(tokens) // page_size * page_size, page_size):
        page = page_after(page, tokens[start : start + page_size])
        pages.append(page)
    return tuple(pages)


def page_after(before: int, tokens: tuple[int, ...]) -> int:
    """Return the hash of a page, given the hash of the previous page or of the namespace."""
    return hash((before, tokens))


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
