"""Which pages hold what: the pool, the prefix tree over it, and each running request's lease of both."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rekindle.messages import Offload, Offloaded
from rekindle.page import NULL_PAGE, StoredPage
from rekindle.scheduler.cache.nodes import Evicted, Node
from rekindle.scheduler.cache.pool import PagePool
from rekindle.scheduler.cache.tree import PrefixTree
from rekindle.scheduler.limits import Limits

OFFLOADED_AT_ONCE = 16
"""Pages copied to the host tier ahead of need by one `Offload`."""


NextPage = tuple[Node | str, bytes]
"""The node, or the namespace, that a page follows, and the key of its tokens."""


@dataclass(slots=True, eq=False)
class Lease:
    """The pages of one running request. This table says who owns its positions, at any time.

        [0, matched)           the tree; locked
        [matched, published)   its own when they were computed, the tree's now; locked. Where another request published
                               the same tokens first, the page stays its own, beside the tree's
        [published, computed)  its own, written by ticks that are dispatched
        [computed, reserved)   its own, not yet written; `reserved` is where its pages end

    Attributes:
        tip: the locked node at `published`.
        published: tokens up to there, whole pages.
        pages: its pages, in order of position.
        own: those of them that are not the tree's.
    """

    tip: Node
    published: int
    pages: list[int]
    own: set[int] = field(default_factory=set)


class PrefixCache:
    """Pages of the device tier and what is known of the others. Pure host logic.

    Args:
        limits: sizes of both tiers. With `prefix_cache` off nothing is published, so nothing is ever found.

    Attributes:
        dropped: entries of the host tier that nobody needs any more, for the scheduler to hand on.
        offloads: copies to the host tier, to be said before the next plan, which may overwrite their pages.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._pool = PagePool(limits.num_pages)
        self._offloading: dict[int, tuple[int, ...]] = {}  # the entries of each `Offload` that is under way
        self._coming: dict[int, Node] = {}  # whose copies they are
        self._ids = itertools.count()
        self._ahead: tuple[int, int] | None = None  # free pages and those in both tiers, when it last saved ahead
        self.tree = PrefixTree(limits.page_size)
        self.dropped: list[int] = []
        self.offloads: list[Offload] = []

    @property
    def available(self) -> int:
        """Pages that can be reserved now: free ones, and cached ones that can be evicted."""
        return self._pool.free + self.tree.evictable

    @property
    def host_room(self) -> int:
        """Pages that the host tier holds at most."""
        return self._limits.host_pages

    @property
    def offloading(self) -> bool:
        """Whether copies to the host tier are on their way."""
        return bool(self._offloading)

    # What a request holds

    def find(self, namespace: str, tokens: Sequence[int]) -> list[Node]:
        """The nodes of the longest cached prefix: first those on the device, then those in the host tier alone."""
        return self.tree.match(namespace, tokens)

    def next_page(self, namespace: str, nodes: Sequence[Node], tokens: Sequence[int]) -> NextPage | None:
        """What identifies the first page of `tokens` after `nodes`; None if there are no tokens for a whole page."""
        return self._following(nodes[-1] if nodes else namespace, len(nodes), tokens)

    def page_after(self, lease: Lease, tokens: Sequence[int]) -> NextPage | None:
        """The same for the first page that a running request has not published."""
        tip = lease.tip if lease.tip.parent is not None else lease.tip.key.decode()
        return self._following(tip, lease.published // self._limits.page_size, tokens)

    def lease(self, namespace: str, nodes: Sequence[Node]) -> Lease:
        """Lock these nodes of the device tier for a request, which has no pages of its own yet."""
        tip = nodes[-1] if nodes else self.tree.root(namespace)
        self.tree.lock(tip)
        return Lease(tip, len(nodes) * self._limits.page_size, [_page_of(node) for node in nodes])

    def reserve(self, lease: Lease, count: int) -> bool:
        """Take `count` more pages, all or none, evicting what was not used for longest."""
        if count > self.available:
            return False
        if count > self._pool.free:
            self._evict(count - self._pool.free)
        pages = self._pool.allocate(count)
        lease.pages += pages
        lease.own.update(pages)
        return True

    def onload(self, lease: Lease, nodes: Sequence[Node]) -> list[int]:
        """Give the reserved pages after `published` to nodes of the host tier that continue it; those pages."""
        first = lease.published // self._limits.page_size
        pages = lease.pages[first : first + len(nodes)]
        spare = self.tree.attach(nodes, pages)
        assert not spare, "an onload for nodes that have pages"
        for node in nodes:
            self.drop_copy(node)
        self.tree.lock(nodes[-1])
        self.tree.unlock(lease.tip)
        lease.tip, lease.published = nodes[-1], lease.published + len(nodes) * self._limits.page_size
        lease.own.difference_update(pages)
        return pages

    def publish(self, lease: Lease, tokens: Sequence[int], computed: int) -> None:
        """Put the whole pages up to `computed` into the tree, for others to find."""
        size = self._limits.page_size
        first, last = lease.published // size, computed // size
        if not self._limits.prefix_cache or last <= first:
            return
        pages = lease.pages[first:last]
        lease.tip, kept = self.tree.publish(lease.tip, tokens[first * size : last * size], pages)
        lease.published = last * size
        lease.own.difference_update(set(pages) - set(kept))

    def release(self, lease: Lease) -> None:
        """Give all back. Pages may be reused at once: ticks in flight that write to them run before later ones."""
        self.tree.unlock(self.keep(lease))

    def keep(self, lease: Lease) -> Node:
        """Give back a request's own pages, and leave what it published locked: the node to unlock one day."""
        self._pool.release(page for page in lease.pages if page in lease.own)
        return lease.tip

    def forget(self) -> None:
        """Never find again what is cached now."""
        for namespace in self.tree.namespaces:
            self._let_go(self.tree.forget(namespace))

    # The host tier

    def offload_ahead(self) -> None:
        """Begin to copy the pages that are the next to be evicted to the host tier, if few are free or copied."""
        now = self._pool.free, self.tree.in_both
        # More than half of a small host tier would push out what was just copied, for ever.
        wanted = min(self._limits.num_pages // 8, self._limits.host_pages // 2) - sum(now)
        if wanted > 0 and not self._offloading and now != self._ahead:
            self._ahead = now
            self._offload_oldest(min(wanted, OFFLOADED_AT_ONCE))

    def offloaded(self, message: Offloaded) -> None:
        """The copies are there, or could not be kept."""
        for entry in self._offloading.pop(message.offload_id):
            node = self._coming.pop(entry)
            if not message.kept and node.host == entry:  # a later copy is good still, and so is one on disk
                self._let_go(self.tree.drop_host(node))

    def is_on_its_way(self, node: Node) -> bool:
        """Whether its copy was begun and is not there yet."""
        return node.host in self._coming

    def offload(self, nodes: Sequence[Node]) -> None:
        """Begin to copy those of these pages that the host tier lacks, as far as it has room; they count as copied."""
        lacking = [node for node in nodes if node.device_only]
        if len(lacking) == len(nodes):  # or the copies that it has of some of them might make room for the others
            self._make_room(len(lacking))
        self._offload(lacking[: self._limits.host_pages - self.tree.host_pages])

    def drop_copy(self, node: Node) -> None:
        """Beside its device page, a copy would only take room from pages that are nowhere else."""
        if node.page is not None:
            self._let_go(self.tree.drop_host(node))

    def _evict(self, count: int) -> None:
        """Free pages, least recently used first, and copy those that the host tier has room for.

        What it has no room for leaves before the others: copies below a page that is nowhere would leave with it.
        """
        self._make_room(count)
        kept = min(count, self._limits.host_pages - self.tree.host_pages)  # copies that are locked stay
        self._let_go(self.tree.evict(count - kept))
        self._offload_oldest(kept)
        self._let_go(self.tree.evict(kept))

    def _offload_oldest(self, count: int) -> None:
        """Copy up to `count` pages, least recently used first; they count as copied from now on."""
        self._make_room(count)
        self._offload(self.tree.next_to_offload(min(count, self._limits.host_pages - self.tree.host_pages)))

    def _make_room(self, copies: int) -> None:
        self._let_go(self.tree.prune(max(0, self.tree.host_pages + copies - self._limits.host_pages)))

    def _offload(self, nodes: Sequence[Node]) -> None:
        if not nodes:
            return
        entries = tuple(next(self._ids) for _ in nodes)
        for node, entry in zip(nodes, entries, strict=True):
            self.tree.offloaded(node, entry)
        message = Offload(next(self._ids), tuple(_page_of(node) for node in nodes), entries)
        self._offloading[message.offload_id] = entries
        self._coming.update(zip(entries, nodes, strict=True))
        self.offloads.append(message)

    def unreadable(self, nodes: Iterable[Node]) -> None:
        """The copies of these could not be read: what depends on them is forgotten."""
        for node in nodes:
            if node.host is not None:
                self._let_go(self.tree.drop_host(node))
            elif node.disk is not None:
                self._let_go(self.tree.drop_disk(node.disk))

    # The disk tier

    def next_to_archive(self, count: int) -> list[Node]:
        """Up to `count` pages that are not on disk, parents before children; see `PrefixTree.next_to_archive`."""
        return self.tree.next_to_archive(count)

    def restore(self, pages: Iterable[StoredPage]) -> None:
        """Know of the pages that an earlier session wrote to disk."""
        self.tree.restore(pages)

    def forget_records(self, records: Iterable[int]) -> None:
        """These are on disk no more."""
        for record in records:
            self._let_go(self.tree.crowded_out(record))

    def _let_go(self, evicted: Evicted) -> None:
        """Records that left the tree stay on disk, and are found again if their pages are computed anew."""
        self._pool.release(evicted.pages)
        self.dropped += evicted.entries

    def check(self, leases: Sequence[Lease]) -> None:
        """Assert that every page has exactly one owner."""
        self.tree.check()
        own = [page for lease in leases for page in lease.own]
        cached = [node.page for node in self.tree.walk() if node.page is not None]
        held = [*own, *cached]
        assert len(held) == len(set(held)), "a page has two owners"
        assert NULL_PAGE not in held, "the null page has an owner"
        assert len(held) + self._pool.free == self._limits.num_pages - 1, "a page has no owner"
        for lease in leases:
            assert lease.own <= set(lease.pages), "a lease owns a page that it does not use"
            assert lease.tip.locks, "a lease does not lock its tip"
            assert lease.published <= len(lease.pages) * self._limits.page_size
            assert set(lease.pages[: lease.published // self._limits.page_size]) <= {*lease.own, *cached}

    def _following(self, tip: Node | str, pages: int, tokens: Sequence[int]) -> NextPage | None:
        key = self.tree.key_of(tokens[pages * self._limits.page_size : (pages + 1) * self._limits.page_size])
        return None if key is None else (tip, key)


def _page_of(node: Node) -> int:
    assert node.page is not None, "a node of the host tier alone has no page"
    return node.page
