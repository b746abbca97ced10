"""What a running request owns: its lease of pages."""

from collections.abc import Sequence

from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.prefix_cache import PrefixCache
from rekindle.core.scheduler.cache.tree import NextPage


class Lease:
    """The pages of one running request. This table says who owns its positions, at any time.

        [0, matched)           the tree; locked
        [matched, published)   its own when they were computed, the tree's now; locked. Where another request published
                               the same tokens first, the page stays its own, beside the tree's
        [published, computed)  its own, written by ticks that are dispatched
        [computed, reserved)   its own, not yet written

    Args:
        cache: where the pages come from.
        namespace: of the request.
        nodes: those of its cached prefix that are in the device tier; the last one is locked.

    Attributes:
        page_size: tokens of a page.
        tip: the locked node at `published`.
        pages: its pages, in order of position.
        own: those of them that are not the tree's.
    """

    def __init__(self, cache: PrefixCache, namespace: str, nodes: Sequence[Node]):
        self._cache = cache
        self.page_size = cache.tree.page_size
        self.tip = nodes[-1] if nodes else cache.tree.root(namespace)
        self.pages = [node.page for node in nodes if node.page is not None]
        self.own: set[int] = set()
        cache.tree.lock(self.tip)

    @property
    def published(self) -> int:
        """Tokens whose pages are in the tree."""
        return self.tip.depth * self.page_size

    @property
    def reserved(self) -> int:
        """Tokens that its pages have room for."""
        return len(self.pages) * self.page_size

    def next_page(self, tokens: Sequence[int]) -> NextPage | None:
        """Return what identifies the first whole page of tokens that is not published; None if there is none."""
        tip = self.tip if self.tip.depth else self.tip.key.decode()
        return self._cache.tree.next_page(tip, tokens)

    def reserve(self, count: int) -> bool:
        """Take `count` more pages, all or none; return whether there were enough."""
        pages = self._cache.allocate(count)
        if pages is None:
            return False
        self.pages += pages
        self.own.update(pages)
        return True

    def onload(self, nodes: Sequence[Node]) -> list[int]:
        """Give the reserved pages after `published` to nodes that continue it; return these pages."""
        tree, first = self._cache.tree, self.tip.depth
        pages = self.pages[first : first + len(nodes)]
        tree.attach(nodes, pages)
        for node in nodes:
            self._cache.drop_spare(node)
        tree.lock(nodes[-1])
        tree.unlock(self.tip)
        self.tip = nodes[-1]
        self.own.difference_update(pages)
        return pages

    def publish(self, tokens: Sequence[int], computed: int) -> None:
        """Put the whole pages of the request's tokens up to `computed` into the tree, for others to find."""
        first, last = self.tip.depth, computed // self.page_size
        if self._cache.enabled and last > first:
            pages, tokens = self.pages[first:last], tokens[self.published : last * self.page_size]
            self.tip, spare = self._cache.tree.publish(self.tip, tokens, pages)
            self.own.difference_update(set(pages).difference(spare))

    def release(self) -> None:
        """Give all pages back; what is published stays cached."""
        self._cache.give_back(page for page in self.pages if page in self.own)
        self._cache.tree.unlock(self.tip)

    def check(self) -> None:
        """Assert that the published pages are the tree's or its own, and that the tip is locked."""
        assert self.own <= set(self.pages), "a lease owns a page that it does not use"
        assert self.tip.locks, "a lease does not lock its tip"
        assert self.published <= self.reserved, "a lease has published more than its pages"
        published = zip(self._cache.tree.path(self.tip), self.pages, strict=False)
        assert all(page in self.own or page == node.page for node, page in published), "a published page is lost"
