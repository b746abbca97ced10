"""The prefix cache: the page pool, the tree over it, and moves between the tiers. Pure host logic."""

from collections import deque
from collections.abc import Iterable, Sequence

from rekindle.core.messages import Offloaded
from rekindle.core.page import NO_MARKS, NULL_PAGE, Marks
from rekindle.core.scheduler.cache.nodes import Evicted, Node
from rekindle.core.scheduler.cache.outbox import HostTierOutbox
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.core.scheduler.limits import EngineLimits


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


OFFLOADED_AT_ONCE = 16
"""Maximum number of pages in one early `Offload`, before their eviction is due."""


class PrefixCache:
    """The prefix cache of one group of devices: its page pool, the tree over its pages, and their host copies.

    Leases allocate and publish pages here, the waiting queue looks up prefixes, and `DiskWriteback` writes pages back.

    Args:
        limits: the sizes of both tiers, and whether prefixes are cached.
        outbox: receives the messages to the host tier.
        group: the number of the group of devices with these pages.

    Attributes:
        enabled: whether pages are published; without it, no prefix is ever found.
        tree: the cached prefixes, in each tier.
        held_nodes: the locked node of each held prefix, by request id.
        losses: the number of times all device pages were lost.
    """

    def __init__(self, limits: EngineLimits, outbox: HostTierOutbox, group: int = 0):
        self._limits = limits
        self._pool = PagePool(limits.pool.num_pages, group * limits.pool.num_pages)
        self._outbox = outbox
        # The nodes of each `Offload` in progress, by entry; None for a state of tokens that are not known yet.
        self._offloading: dict[int, dict[int, Node | None]] = {}
        self._unplaced: set[int] = set()  # entries of such states
        self._provisional = 0  # states in the tree that later ones of running requests replace
        self._ahead: tuple[int, int] | None = None  # free pages and pages in both tiers at the last offload ahead
        self.enabled = limits.prefix_cache
        self.tree = PrefixTree(limits.pool.page_size, limits.pool.state_pages)
        self.held_nodes: dict[int, Node] = {}
        self.losses = 0

    @property
    def available(self) -> int:
        """Pages available now: free ones, and evictable cached ones."""
        return self._pool.free + self.tree.ledger.evictable

    @property
    def offloading(self) -> bool:
        """True if an offload to the host tier is in progress."""
        return bool(self._offloading)

    # The device tier

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` pages, evicting the least recently used; None, and none taken, if too few are available."""
        if count > self.available:
            return None
        if count > self._pool.free:
            self._evict(count - self._pool.free)
        return self._pool.allocate(count)

    def give_back(self, pages: Iterable[int]) -> None:
        """Free pages outside of the tree. Ticks in flight write to these pages before later ticks reuse them."""
        self._pool.release(pages)

    def on_device(self, namespace: str, tokens: Sequence[int], marks: Marks = NO_MARKS) -> tuple[int, ...]:
        """Return the pages of the longest prefix of tokens in the device tier."""
        return tuple(node.page for node in self.tree.match(namespace, tokens, marks=marks) if node.page is not None)

    def receive(
        self, namespace: str, tokens: Sequence[int], first: int, count: int, marks: Marks = NO_MARKS
    ) -> tuple[int, tuple[int, ...]]:
        """Allocate `count` pages from the page `first` on, for a part of a prefix computed elsewhere.

        Returns:
            The number of the prefix's pages already on the device, and the new pages after these. There are no new
                pages if all are there already, if an earlier part of the prefix is missing, or if the pool is full.
        """
        nodes = [node for node in self.tree.match(namespace, tokens, marks=marks) if node.page is not None]
        cached, size = len(nodes), self.tree.page_size
        if not self.enabled or not first <= cached < first + count:
            return cached, ()
        tip = nodes[-1] if nodes else self.tree.root(namespace)
        self.tree.lock(tip)
        pages = self.allocate(first + count - cached)
        if pages is not None:
            tip, spare = self.tree.publish(tip, tokens[cached * size : (first + count) * size], pages, marks)
            assert not spare, "a received page is cached already"
        self.tree.unlock(tip)
        return cached, tuple(pages or ())

    def hold(self, request_id: int, node: Node) -> None:
        """Keep a prefix in the device tier until its release, and the state after it in the host tier."""
        last = node if node.state is None else node.state
        self.tree.lock(last)
        self.held_nodes[request_id] = last

    def release(self, request_id: int) -> None:
        """Release a held prefix."""
        self.tree.unlock(self.held_nodes.pop(request_id))

    def lose_device(self) -> None:
        """Release all prefixes and free all device pages, which must be unused; copies stay."""
        self.losses += 1
        self._release_all()
        self._free(self.tree.evict(self.tree.ledger.device_pages))

    def forget(self) -> None:
        """Release all prefixes, and forget every cached one."""
        self._release_all()
        for namespace in self.tree.roots.namespaces:
            self._free(self.tree.forget(namespace))

    def _release_all(self) -> None:
        for request_id in list(self.held_nodes):
            self.release(request_id)

    # The host tier

    def offload_ahead(self) -> None:
        """Start to offload the pages next to be evicted, if few pages are free or in both tiers."""
        now = self._pool.free, self.tree.ledger.in_both
        # More than half of a small host tier would push out fresh copies, for ever.
        shortage = min(self._limits.pool.num_pages // 8, self._limits.pool.host_pages // 2) - sum(now)
        if shortage > 0 and not self._offloading and now != self._ahead:
            self._ahead = now
            self._offload_oldest(min(shortage, OFFLOADED_AT_ONCE))

    def offload(self, nodes: Sequence[Node]) -> None:
        """Start to offload pages without a host copy, as far as there is room."""
        missing = [node for node in nodes if node.device_only]
        if len(missing) == len(nodes):  # otherwise host copies among these nodes might be pruned for the others
            self._make_room(len(missing))
        self._offload(missing[: self._host_room])

    def on_offloaded(self, message: Offloaded) -> None:
        """Complete an offload of this cache, or undo it if the host tier could not store the copies."""
        for entry, node in self._offloading.pop(message.offload_id, {}).items():
            if message.is_stored:
                continue
            if node is None:
                self.drop_state(entry)
            elif node.host == entry:  # a later host copy or a copy on disk stays valid
                self._free(self.tree.drop_host(node))

    def is_offloading(self, node: Node) -> bool:
        """Return True if the node's host copy is in progress."""
        return any(node.host in nodes for nodes in self._offloading.values())

    def drop_redundant_copy(self, node: Node) -> None:
        """Drop the host copy of a page on the device: other pages have no copy at all and need the room."""
        if node.page is not None:
            self._free(self.tree.drop_host(node))

    def forget_unreadable(self, nodes: Iterable[Node]) -> None:
        """Drop the unreadable copy of each node; a node without another copy leaves the tree with its descendants."""
        for node in nodes:
            self._free(self.tree.drop_disk(node) if node.host is None else self.tree.drop_host(node))

    def crowd_out(self, records: Iterable[int]) -> None:
        """Forget records removed from the disk to make room."""
        for record in records:
            self._free(self.tree.crowd_out(record))

    # States

    def keep_state(self, node: Node, slot: int) -> None:
        """Start to copy the state of a slot to the host tier, as the one after a prefix; skip it without room."""
        if node.state is None and (entry := self.copy_state(slot)) is not None:
            self.place_state(entry, node)

    def copy_state(self, slot: int) -> int | None:
        """Start to copy the state of a slot to the host tier; return its entry, or None without room.

        Give the entry to `place_state` or `drop_state`.
        """
        size = self._limits.pool.state_pages
        self._make_room(size)
        if self._host_room < size:
            return None
        entry = self._outbox.entry()
        self._unplaced.add(entry)
        self._offloading[self._outbox.offload((), (entry,), self.losses, (slot,))] = {entry: None}
        return entry

    def copy_decoding(self, slot: int) -> int | None:
        """Start to copy the state of a decoding request, as `copy_state`, if few others of the kind are in host memory.

        Otherwise many running requests would push all other copies out.
        """
        copies = len(self._unplaced) + self._provisional + 1
        fits = copies * self._limits.pool.state_pages <= self._limits.pool.host_pages // 2
        return self.copy_state(slot) if fits else None

    def place_state(self, entry: int, node: Node, *, provisional: bool = False) -> Node | None:
        """Add a copied state to the tree, as the one after a prefix; return None if it is not there or not needed.

        Args:
            provisional: whether `forget_state` or `finish_state` follows.
        """
        if entry not in self._unplaced:
            return None  # it could not be copied
        state = self.tree.add_state(node, entry, provisional=provisional)
        if state is None:
            self.drop_state(entry)
            return None
        self._unplaced.remove(entry)
        self._provisional += provisional
        for nodes in self._offloading.values():
            if entry in nodes:
                nodes[entry] = state
        return state

    def drop_state(self, entry: int) -> None:
        """Drop a copied state that was not placed."""
        if entry in self._unplaced:
            self._unplaced.remove(entry)
            self._outbox.drop([entry])

    def forget_state(self, node: Node) -> None:
        """Drop the host copy of a provisional state that a later one replaces, unless a request waits for it."""
        if node.locks:
            self.finish_state(node)
            return
        self._provisional -= 1
        self._free(self.tree.drop_host(node))

    def finish_state(self, node: Node) -> None:
        """Keep a provisional state like others, as no later one replaces it."""
        self._provisional -= 1
        self.tree.finish_state(node)

    def check(self, lease_pages: Sequence[int], copied: Sequence[int] = ()) -> None:
        """Assert the invariant of exactly one owner for each page and each copied state.

        Args:
            lease_pages: the pages of leases.
            copied: the entries of states that requests have not placed.
        """
        self.tree.check()
        pages = [*lease_pages, *(node.page for node in self.tree.walk() if node.page is not None)]
        assert len(pages) == len(set(pages)), "a page has two owners"
        assert NULL_PAGE not in pages, "the null page has an owner"
        assert len(pages) + self._pool.free == self._limits.pool.num_pages - 1, "a page has no owner"
        assert self._unplaced <= set(copied), "a copied state has no owner"
        assert self._host_room >= 0, "the host tier has more copies than room"

    @property
    def _host_room(self) -> int:
        """The free room of the host tier, in pages."""
        pool = self._limits.pool
        return pool.host_pages - self.tree.ledger.host_room - len(self._unplaced) * pool.state_pages

    def _evict(self, count: int) -> None:
        """Free pages, least recently used first, and offload them as far as the host tier has room.

        Pages without room are evicted before the others: the host copies below a page without any copy would leave with
        it.
        """
        self._make_room(count)
        offloaded = min(count, self._host_room)  # locked host copies stay
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
        """Start to offload nodes; their host copies count as present from now on."""
        nodes_by_entry: dict[int, Node | None] = {}
        for node in nodes:
            entry = self._outbox.entry()
            self.tree.add_host_copy(node, entry)
            nodes_by_entry[entry] = node
        if nodes_by_entry:
            pages = tuple(node.page for node in nodes_by_entry.values() if node is not None and node.page is not None)
            number = self._outbox.offload(pages, tuple(nodes_by_entry), self.losses)
            self._offloading.setdefault(number, {}).update(nodes_by_entry)

    def _free(self, evicted: Evicted) -> None:
        self._pool.release(evicted.pages)
        self._outbox.drop(evicted.entries)
