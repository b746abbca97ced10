"""Leases: the pages of running requests."""

from collections.abc import Sequence

from rekindle.core.page import NO_MARKS, Marks
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.prefix_cache import PrefixCache
from rekindle.core.scheduler.cache.tree import NextPage


class Lease:
    """The pages of one running request, from its admission to its end or preemption.

    The table shows the owner of the page at each position.

        [0, matched)           the tree; locked
        [matched, published)   the request when they were computed, the tree now; locked. If another request published
                               the same tokens first, the request keeps its page in addition to the tree's
        [published, computed)  the request, written by dispatched ticks
        [computed, reserved)   the request, not yet written

    Args:
        cache: the source of the pages.
        namespace: the namespace of the request.
        nodes: the nodes of its cached prefix in the device tier; the last one is locked.

    Attributes:
        cache: the source of the pages.
        page_size: tokens of a page.
        tip: the locked node at `published`.
        pages: its pages, in order of position.
        own_pages: its pages not owned by the tree.
    """

    def __init__(self, cache: PrefixCache, namespace: str, nodes: Sequence[Node]):
        self.cache = cache
        self.page_size = cache.tree.page_size
        self.tip = nodes[-1] if nodes else cache.tree.root(namespace)
        self.pages = [node.page for node in nodes if node.page is not None]
        self.own_pages: set[int] = set()
        cache.tree.lock(self.tip)

    @property
    def published(self) -> int:
        """Published tokens."""
        return self.tip.depth * self.page_size

    @property
    def reserved(self) -> int:
        """Capacity of its pages, in tokens."""
        return len(self.pages) * self.page_size

    def node_at(self, position: int) -> Node | None:
        """Return the published node that ends at a position, a multiple of the page size; None beyond `published`."""
        depth = position // self.page_size
        return next((node for node in self.tip.upward() if node.depth == depth), None)

    def next_page(self, tokens: Sequence[int], marks: Marks = NO_MARKS) -> NextPage | None:
        """Return the identity of the first unpublished whole page of tokens, or None."""
        tip = self.tip if self.tip.depth else self.tip.key.decode()
        return self.cache.tree.next_page(tip, tokens, marks)

    def reserve(self, count: int) -> bool:
        """Take `count` more pages, all or none; return whether enough were available."""
        pages = self.cache.allocate(count)
        if pages is None:
            return False
        self.pages += pages
        self.own_pages.update(pages)
        return True

    def onload(self, nodes: Sequence[Node]) -> list[int]:
        """Give the reserved pages after `published` to the next nodes of the cached prefix; return the pages."""
        tree, first = self.cache.tree, self.tip.depth
        pages = self.pages[first : first + len(nodes)]
        tree.attach(nodes, pages)
        for node in nodes:
            self.cache.drop_redundant_copy(node)
        tree.lock(nodes[-1])
        tree.unlock(self.tip)
        self.tip = nodes[-1]
        self.own_pages.difference_update(pages)
        return pages

    def publish(self, tokens: Sequence[int], computed: int, marks: Marks = NO_MARKS) -> None:
        """Add the whole computed pages of the request to the tree, so that other requests find them."""
        first, last = self.tip.depth, computed // self.page_size
        if self.cache.enabled and last > first:
            pages, tokens = self.pages[first:last], tokens[self.published : last * self.page_size]
            self.tip, spare = self.cache.tree.publish(self.tip, tokens, pages, marks)
            self.own_pages.difference_update(set(pages).difference(spare))

    def release(self) -> None:
        """Return its own pages to the pool and unlock the others; published pages stay cached."""
        self.cache.give_back(page for page in self.pages if page in self.own_pages)
        self.cache.tree.unlock(self.tip)

    def check(self) -> None:
        """Assert the invariants: a published page is the tree's or its own, and the tip is locked."""
        assert self.own_pages <= set(self.pages), "a lease owns a page that it does not use"
        assert self.tip.locks, "a lease does not lock its tip"
        assert self.published <= self.reserved, "a lease has more published pages than pages"
        published = zip(self.cache.tree.path(self.tip), self.pages, strict=False)
        assert all(page in self.own_pages or page == node.page for node, page in published), "a published page is lost"
