"""The prefix cache: the page pool, the prefix tree over it, and what moves between the tiers. Pure host logic."""

from collections.abc import Iterable, Sequence

from rekindle.core.messages import Offloaded
from rekindle.core.page import NULL_PAGE
from rekindle.core.scheduler.cache.nodes import Evicted, Node
from rekindle.core.scheduler.cache.outbox import HostTierOutbox
from rekindle.core.scheduler.cache.pool import PagePool
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.core.scheduler.limits import EngineLimits

OFFLOADED_AT_ONCE = 16
"""Pages that are offloaded ahead of need by one `Offload`."""


class PrefixCache:
    """Which pages are free, which are cached, and what the host tier has to be told.

    Args:
        limits: the sizes of both tiers, and whether anything is cached.
        outbox: what the host tier is told.
        group: the number of the group of devices that has the pages.

    Attributes:
        enabled: whether pages are published; if not, nothing is ever found.
        tree: what is cached, in which tier.
        held: the locked node of each held prefix, by request id.
        losses: how often all pages of the device were lost.
    """

    def __init__(self, limits: EngineLimits, outbox: HostTierOutbox, group: int = 0):
        self._limits = limits
        self._pool = PagePool(limits.pool.num_pages, group * limits.pool.num_pages)
        self._outbox = outbox
        self._offloading: dict[int, dict[int, Node]] = {}  # the node of each entry of each `Offload` that is under way
        self._ahead: tuple[int, int] | None = None  # free pages and those in both tiers, when it last offloaded ahead
        self.enabled = limits.prefix_cache
        self.tree = PrefixTree(limits.pool.page_size)
        self.held: dict[int, Node] = {}
        self.losses = 0

    @property
    def available(self) -> int:
        """Pages that can be allocated now: free ones, and cached ones that can be evicted."""
        return self._pool.free + self.tree.evictable

    @property
    def offloading(self) -> bool:
        """Tell whether pages are on their way to the host tier."""
        return bool(self._offloading)

    # The device tier

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` pages, all or none, evicting what was not used for longest; None if there are not so many."""
        if count > self.available:
            return None
        if count > self._pool.free:
            self._evict(count - self._pool.free)
        return self._pool.allocate(count)

    def give_back(self, pages: Iterable[int]) -> None:
        """Free pages that are not in the tree. Ticks in flight that write to them run before those that reuse them."""
        self._pool.release(pages)

    def on_device(self, namespace: str, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the pages of the longest prefix of tokens that is in the device tier."""
        return tuple(node.page for node in self.tree.match(namespace, tokens) if node.page is not None)

    def receive(self, namespace: str, tokens: Sequence[int], first: int, count: int) -> tuple[int, tuple[int, ...]]:
        """Take pages for a part of a prefix that comes from elsewhere: `count` of them, from the page `first` on.

        Returns:
            How many of the prefix's pages are there already, and the pages for those that follow; none if something
            before them is missing, or there is no room.
        """
        nodes = [node for node in self.tree.match(namespace, tokens) if node.page is not None]
        known, size = len(nodes), self.tree.page_size
        if not self.enabled or not first <= known < first + count:
            return known, ()
        tip = nodes[-1] if nodes else self.tree.root(namespace)
        self.tree.lock(tip)
        pages = self.allocate(first + count - known)
        if pages is not None:
            tip, spare = self.tree.publish(tip, tokens[known * size : (first + count) * size], pages)
            assert not spare, "a page came that is there"
        self.tree.unlock(tip)
        return known, tuple(pages or ())

    def hold(self, request_id: int, node: Node) -> None:
        """Keep a prefix in the device tier until it is released."""
        self.tree.lock(node)
        self.held[request_id] = node

    def release(self, request_id: int) -> None:
        """Let go of a held prefix."""
        self.tree.unlock(self.held.pop(request_id))

    def lose_device(self) -> None:
        """Release all prefixes, and take all pages of the device, which nobody uses, for lost; their copies are not."""
        self.losses += 1
        self._release_all()
        self._free(self.tree.evict(self.tree.device_pages))

    def forget(self) -> None:
        """Release all prefixes, and never find again what is cached now."""
        self._release_all()
        for namespace in self.tree.roots.namespaces:
            self._free(self.tree.forget(namespace))

    def _release_all(self) -> None:
        for request_id in list(self.held):
            self.release(request_id)

    # The host tier

    def offload_ahead(self) -> None:
        """Begin to offload the pages that are evicted next, if few pages are free or in both tiers."""
        now = self._pool.free, self.tree.in_both
        # More than half of a small host tier would push out what was just offloaded, for ever.
        wanted = min(self._limits.pool.num_pages // 8, self._limits.pool.host_pages // 2) - sum(now)
        if wanted > 0 and not self._offloading and now != self._ahead:
            self._ahead = now
            self._offload_oldest(min(wanted, OFFLOADED_AT_ONCE))

    def offload(self, nodes: Sequence[Node]) -> None:
        """Begin to offload those of these pages that have no host copy, as far as there is room."""
        needed = [node for node in nodes if node.device_only]
        if len(needed) == len(nodes):  # or the host copies of some of them might make room for those of the others
            self._make_room(len(needed))
        self._offload(needed[: self._host_room])

    def offloaded(self, message: Offloaded) -> None:
        """Note that host copies are there, or could not be kept; pass over what was offloaded by another cache."""
        for entry, node in self._offloading.pop(message.offload_id, {}).items():
            if not message.is_stored and node.host == entry:  # a later host copy is good still, and so is one on disk
                self._free(self.tree.drop_host(node))

    def is_offloading(self, node: Node) -> bool:
        """Return whether the node's host copy was begun and is not there yet."""
        return any(node.host in nodes for nodes in self._offloading.values())

    def drop_spare(self, node: Node) -> None:
        """Drop the host copy of a page that is on the device: it takes room from pages that are nowhere else."""
        if node.page is not None:
            self._free(self.tree.drop_host(node))

    def unreadable(self, nodes: Iterable[Node]) -> None:
        """Forget copies that could not be read, and what depends on them."""
        for node in nodes:
            self._free(self.tree.drop_disk(node) if node.host is None else self.tree.drop_host(node))

    def crowded_out(self, records: Iterable[int]) -> None:
        """Forget records that left the disk to make room."""
        for record in records:
            self._free(self.tree.crowded_out(record))

    def check(self, own: Sequence[int]) -> None:
        """Assert that every page has exactly one owner, given the pages that requests own."""
        self.tree.check()
        owned = [*own, *(node.page for node in self.tree.walk() if node.page is not None)]
        assert len(owned) == len(set(owned)), "a page has two owners"
        assert NULL_PAGE not in owned, "the null page has an owner"
        assert len(owned) + self._pool.free == self._limits.pool.num_pages - 1, "a page has no owner"

    @property
    def _host_room(self) -> int:
        return self._limits.pool.host_pages - self.tree.host_pages

    def _evict(self, count: int) -> None:
        """Free pages, least recently used first, and offload those that the host tier has room for.

        What it has no room for leaves before the others: host copies below a page that is nowhere would leave with it.
        """
        self._make_room(count)
        offloaded = min(count, self._host_room)  # host copies that are locked stay
        self._free(self.tree.evict(count - offloaded))
        self._offload_oldest(offloaded)
        self._free(self.tree.evict(offloaded))

    def _offload_oldest(self, count: int) -> None:
        self._make_room(count)
        self._offload(self.tree.next_to_offload(min(count, self._host_room)))

    def _make_room(self, count: int) -> None:
        """Prune until the host tier has room for `count` pages."""
        self._free(self.tree.prune(count - self._host_room))

    def _offload(self, nodes: Iterable[Node]) -> None:
        """Begin to offload these; their host copies count as being there from now on."""
        begun: dict[int, Node] = {}
        for node in nodes:
            entry = self._outbox.entry()
            self.tree.offloaded(node, entry)
            begun[entry] = node
        if begun:
            pages = tuple(node.page for node in begun.values() if node.page is not None)
            self._offloading[self._outbox.offload(pages, tuple(begun), self.losses)] = begun

    def _free(self, evicted: Evicted) -> None:
        self._pool.release(evicted.pages)
        self._outbox.drop(evicted.entries)
