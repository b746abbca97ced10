"""Ledger of the prefix tree: counts, and the queues of nodes next to leave a tier."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from rekindle.core.scheduler.cache.nodes import FORGOTTEN, Evicted, Node
from rekindle.core.scheduler.cache.records import Records


class Member(Protocol):
    """A member of the queue, hashable by identity, with the number of its last use and its depth in the tree."""

    last_used: int
    depth: int


T = TypeVar("T", bound=Member)

_SLACK = 64
"""Stale entries allowed in a heap of any size."""


class OldestFirst(Generic[T]):
    """Queue of members, the least recently used first; of equally recent ones, the deepest first.

    Pushing and popping cost O(log n), discarding O(1) amortised. Put a member again after each change of its
    `last_used`.
    """

    def __init__(self) -> None:
        self._used: dict[T, int] = {}
        # An entry is stale unless its member is in `_used` with the same number; `pop` skips it.
        self._heap: list[tuple[int, int, int, T]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, member: T) -> bool:
        return member in self._used

    def put(self, member: T) -> None:
        """Add a member, or move it to its new place."""
        if self._used.get(member) != member.last_used:
            self._used[member] = member.last_used
            self._pushes += 1
            heappush(self._heap, (member.last_used, -member.depth, self._pushes, member))
            self._shrink()

    def discard(self, member: T) -> None:
        """Remove a member, if present."""
        if self._used.pop(member, None) is not None:
            self._shrink()

    def pop(self) -> T | None:
        """Remove and return the least recently used member; None if the queue is empty."""
        while self._heap:
            used, _, _, member = heappop(self._heap)
            if self._used.get(member) == used:
                self.discard(member)
                return member
        return None

    def check(self) -> None:
        """Assert the invariants: each member has an entry at its place, and at most half of the heap is stale."""
        for member, used in self._used.items():
            assert used == member.last_used, "a member was used and not put again"
        assert set(self._used.items()) <= {(member, used) for used, _, _, member in self._heap}, "a member has no entry"
        assert len(self._heap) <= 2 * len(self._used) + _SLACK, "more than half of the heap is stale"

    def _shrink(self) -> None:
        if len(self._heap) > 2 * len(self._used) + _SLACK:
            self._heap = [(used, -member.depth, at, member) for at, (member, used) in enumerate(self._used.items())]
            self._pushes = len(self._heap)
            heapify(self._heap)


class Ledger:
    """Counts of all nodes, and the queues of nodes next to leave a tier; updated at each change of a node.

    No update walks over the tree. In both memory tiers, the next node to leave is the least recently used one without
    locks and without a child in the same tier. Three queues hold exactly the candidates: `to_evict` for device pages,
    `to_prune` for host copies, `to_offload` for device pages without a host copy. Copies on disk leave only when their
    store removes one.

    Args:
        records: the tree's records, updated when a node leaves the tree.
        state_pages: the room of a state in the host tier, in pages.

    Attributes:
        nodes: pages in the tree: nodes, without roots and states.
        states: states in the tree.
        device_pages: nodes with a device page.
        host_pages, host_states: pages and states with a host copy.
        in_both: nodes with both a device page and a host copy.
        evictable: device pages that `PrefixTree.evict` could free now.
        to_evict, to_offload, to_prune: the queues, least recently used first.
    """

    def __init__(self, records: Records, state_pages: int):
        self._records = records
        self._state_pages = state_pages
        self.nodes = self.states = self.device_pages = self.host_pages = self.host_states = 0
        self.in_both = self.evictable = 0
        self.to_evict: OldestFirst[Node] = OldestFirst()
        self.to_offload: OldestFirst[Node] = OldestFirst()
        self.to_prune: OldestFirst[Node] = OldestFirst()

    @property
    def host_room(self) -> int:
        """The room of all host copies, in pages."""
        return self.host_pages + self.host_states * self._state_pages

    def lock(self, node: Node, used: int) -> None:
        """Add a lock to one node; the tree locks each node of a path in turn."""
        node.locks += 1
        node.last_used = used
        if node.locks == 1:
            if node.page is not None:
                self.evictable -= 1
            self.place(node)

    def unlock(self, node: Node, used: int) -> None:
        """Remove a lock from one node; the tree unlocks each node of a path in turn."""
        assert node.locks, "unlocked more often than locked"
        node.locks -= 1
        node.last_used = used
        if not node.locks:
            if node.page is not None:
                self.evictable += 1
            self.place(node)

    def add(self, node: Node) -> None:
        """Count a new node. A new page is locked or only on disk, so it belongs to no queue; a state needs `place`."""
        self._add(node, 1)

    def move(self, node: Node, page: int | None, host: int | None) -> None:
        """Change the device page and the host copy of a node, which must have a parent."""
        self._count(node, -1)
        node.page, node.host = page, host
        self._count(node, 1)
        self.place(node)
        assert node.parent is not None
        self.place(node.parent)

    def cut(self, node: Node, into: Evicted) -> None:
        """Remove a node and its descendants from the tree; none with a device page may be locked."""
        assert node.parent is not None
        del node.parent.children[node.key]
        stack = [node]
        while stack:
            below = stack.pop()
            stack.extend(below.children.values())
            below.children.clear()
            self._add(below, -1)
            if below.page is not None:
                into.pages.append(below.page)
            if below.host is not None:
                into.entries.append(below.host)
            below.page = below.host = None
            self._records.remove(below)
            self.place(below)
        self.place(node.parent)

    def place(self, node: Node) -> None:
        """Put a node into the queues of its current state, and take it out of the others."""
        free = not node.locks
        if free and node.page is not None and not node.device_children:
            self.to_evict.put(node)
        else:
            self.to_evict.discard(node)
        if free and node.device_only and not node.device_only_children and node.last_used != FORGOTTEN:
            self.to_offload.put(node)
        else:
            self.to_offload.discard(node)
        if free and node.host is not None and not node.host_children:
            self.to_prune.put(node)
        else:
            self.to_prune.discard(node)

    def check(self, nodes: Iterable[Node]) -> None:
        """Assert the counts and queues, given all nodes of the tree."""
        nodes = list(nodes)
        warm = [node for node in nodes if node.page is not None]
        in_host = [node for node in nodes if node.host is not None]
        states, host_states = (sum(node.is_state for node in some) for some in (nodes, in_host))
        assert (self.nodes, self.states) == (len(nodes) - states, states), "wrong counts"
        counts = self.device_pages, self.host_pages, self.host_states
        assert counts == (len(warm), len(in_host) - host_states, host_states), "wrong counts of a tier"
        assert self.in_both == sum(node.host is not None for node in warm), "nodes in both tiers are miscounted"
        assert len({node.page for node in warm}) == len(warm), "a page is in two nodes"
        assert len({node.host for node in in_host}) == len(in_host), "an entry of the host tier is in two nodes"
        free = [node for node in warm if not node.locks]
        assert self.evictable == len(free), "pages that can be evicted are miscounted"
        evict = [node for node in free if all(child.page is None for child in node.children.values())]
        offload = [n for n in free if n.device_only and n.last_used != FORGOTTEN and not _any_device_only(n)]
        prune = [n for n in in_host if not n.locks and all(child.host is None for child in n.children.values())]
        for queue, right in ((self.to_evict, evict), (self.to_offload, offload), (self.to_prune, prune)):
            queue.check()
            assert len(queue) == len(right), "a queue has nodes that do not belong there"
            assert all(node in queue for node in right), "a queue lacks a node"

    def _add(self, node: Node, by: int) -> None:
        self.nodes += by * (not node.is_state)
        self.states += by * node.is_state
        self._count(node, by)

    def _count(self, node: Node, by: int) -> None:
        """Add `by` to every count of the node's tiers."""
        parent = node.parent
        assert parent is not None
        if node.page is not None:
            self.device_pages += by
            parent.device_children += by
            if not node.locks:
                self.evictable += by
            if node.host is not None:
                self.in_both += by
            else:
                parent.device_only_children += by
        if node.host is not None:
            self.host_pages += by * (not node.is_state)
            self.host_states += by * node.is_state
            parent.host_children += by


def _any_device_only(node: Node) -> bool:
    return any(child.device_only for child in node.children.values())
