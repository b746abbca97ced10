"""The nodes of the prefix tree, and the ledger that follows their every change: counts, and what leaves a tier next."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rekindle.lru import OldestFirst

FORGOTTEN = -1
"""`last_used` of every node whose namespace was forgotten: before all others."""


@dataclass(slots=True, eq=False)
class Node:
    """One page of tokens below its parent, or the root of a namespace, which has no page.

    Attributes:
        key: its tokens as int32 bytes; of a root, the namespace.
        parent: None for a root. Kept when the node leaves the tree.
        page: its page of the device tier.
        host: the id of its copy in the host tier.
        locks: how many locks are held on it and on nodes below it.
        last_used: the tree's count of uses when it was last locked or unlocked.
        hits: how many requests found it.
        saving: whether it is on its way to the host tier.
        device_children: how many children have a device page.
        host_children: how many children have a host copy.
        unsaved_children: how many children have a device page that is neither saved nor being saved.
    """

    key: bytes = field(repr=False)
    parent: "Node | None" = field(repr=False)
    page: int | None = None
    host: int | None = None
    locks: int = 0
    last_used: int = 0
    hits: int = 0
    saving: bool = False
    device_children: int = 0
    host_children: int = 0
    unsaved_children: int = 0
    children: dict[bytes, "Node"] = field(default_factory=dict, repr=False)

    @property
    def gone(self) -> bool:
        """Whether it has left the tree, and will never be in it again."""
        return self.page is None and self.host is None and self.parent is not None

    @property
    def on_device(self) -> bool:
        """Whether the whole prefix up to here is in the device tier; true of a root."""
        return self.page is not None or self.parent is None

    @property
    def unsaved(self) -> bool:
        """Whether it would be lost with its device page, and nobody is copying it."""
        return self.page is not None and self.host is None and not self.saving

    def upward(self) -> list["Node"]:
        """Itself, its parent, and so on to the root."""
        node, nodes = self, [self]
        while node.parent is not None:
            node = node.parent
            nodes.append(node)
        return nodes

    def check(self, width: int) -> None:
        """Assert what must hold between a node that is in the tree and its children, `width` bytes of tokens each."""
        children = self.children.values()
        assert not self.gone, "a node without a tier is in the tree"
        assert not self.saving or self.page is not None, "saving what is not there"
        assert not self.saving or self.host is None, "saving what is saved"
        assert self.device_children == sum(child.page is not None for child in children), "device pages are miscounted"
        assert self.host_children == sum(child.host is not None for child in children), "host copies are miscounted"
        assert self.unsaved_children == sum(child.unsaved for child in children), "unsaved pages are miscounted"
        assert self.locks >= sum(child.locks for child in children), "a lock does not hold its whole path"
        for key, child in self.children.items():
            assert child.parent is self, "a child has another parent"
            assert child.key == key, "a child is found under another's tokens"
            assert len(key) == width, "a node is not one page"
            assert child.page is None or self.on_device, "a child is warmer than its parent"
            assert child.last_used <= self.last_used, "a child was used without its parent"
            assert (child.last_used == FORGOTTEN) == (self.last_used == FORGOTTEN), "half of a path is forgotten"


@dataclass(frozen=True, slots=True)
class Evicted:
    """What left the tree and is now the caller's: device pages, and entries of the host tier."""

    pages: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)


class Ledger:
    """What is known of all nodes without walking the tree.

    In each tier the next to leave is a node without locks that has no child in that tier. Three queues hold exactly
    those nodes: `to_evict` of the device pages, `to_prune` of the host copies, `to_save` of the unsaved device pages.

    Attributes:
        nodes: how many nodes there are, roots not counted.
        device_pages: how many have a device page.
        host_pages: how many have a host copy.
        evictable: how many have a device page, and no lock on them or below them.
    """

    def __init__(self) -> None:
        self.nodes = self.device_pages = self.host_pages = self.evictable = 0
        self.to_evict: OldestFirst[Node] = OldestFirst()
        self.to_save: OldestFirst[Node] = OldestFirst()
        self.to_prune: OldestFirst[Node] = OldestFirst()

    def hold(self, node: Node, used: int) -> None:
        """Count one more lock on it or below it."""
        node.locks += 1
        node.last_used = used
        if node.locks == 1:
            self.evictable -= node.page is not None
            self.place(node)

    def release(self, node: Node, used: int) -> None:
        """Count one lock less."""
        assert node.locks, "unlocked more often than locked"
        node.locks -= 1
        node.last_used = used
        if not node.locks:
            self.evictable += node.page is not None
            self.place(node)

    def move(self, node: Node, page: int | None, host: int | None, *, saving: bool = False) -> None:
        """Change the tiers of a node that has a parent."""
        parent = node.parent
        assert parent is not None
        device = (page is not None) - (node.page is not None)
        copies = (host is not None) - (node.host is not None)
        parent.unsaved_children -= node.unsaved
        node.page, node.host, node.saving = page, host, saving
        parent.unsaved_children += node.unsaved
        parent.device_children += device
        parent.host_children += copies
        self.device_pages += device
        self.host_pages += copies
        if not node.locks:
            self.evictable += device
        self.place(node)
        self.place(parent)

    def cut(self, node: Node, into: Evicted) -> None:
        """Take a node and all below it out of the tree; nothing of it that has a device page is locked."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        parent.device_children -= node.page is not None
        parent.host_children -= node.host is not None
        parent.unsaved_children -= node.unsaved
        self.place(parent)
        stack = [node]
        while stack:
            below = stack.pop()
            stack.extend(below.children.values())
            below.children.clear()
            self.nodes -= 1
            if below.page is not None:
                into.pages.append(below.page)
                self.device_pages -= 1
                self.evictable -= 1
            if below.host is not None:
                into.entries.append(below.host)
                self.host_pages -= 1
            below.page = below.host = None
            below.saving = False
            self.place(below)

    def place(self, node: Node) -> None:
        """Put a node into the queues where it belongs now, and take it out of the others."""
        free = not node.locks
        if free and node.page is not None and not node.device_children:
            self.to_evict.put(node)
        else:
            self.to_evict.discard(node)
        if free and node.unsaved and not node.unsaved_children and node.last_used != FORGOTTEN:
            self.to_save.put(node)
        else:
            self.to_save.discard(node)
        if free and node.host is not None and not node.host_children:
            self.to_prune.put(node)
        else:
            self.to_prune.discard(node)

    def check(self, nodes: Iterable[Node]) -> None:
        """Assert that counts and queues are those of these nodes, all that the tree has."""
        nodes = list(nodes)
        warm = [node for node in nodes if node.page is not None]
        held = [node for node in nodes if node.host is not None]
        assert (self.nodes, self.device_pages, self.host_pages) == (len(nodes), len(warm), len(held)), "wrong counts"
        assert len({node.page for node in warm}) == len(warm), "a page is in two nodes"
        assert len({node.host for node in held}) == len(held), "an entry of the host tier is in two nodes"
        free = [node for node in warm if not node.locks]
        assert self.evictable == len(free), "pages that can be evicted are miscounted"
        evict = [node for node in free if all(child.page is None for child in node.children.values())]
        save = [n for n in free if n.unsaved and n.last_used != FORGOTTEN and not _any_unsaved(n)]
        prune = [n for n in held if not n.locks and all(child.host is None for child in n.children.values())]
        for queue, right in ((self.to_evict, evict), (self.to_save, save), (self.to_prune, prune)):
            queue.check()
            assert len(queue) == len(right), "a queue has nodes that do not belong there"
            assert all(node in queue for node in right), "a queue lacks a node"


def _any_unsaved(node: Node) -> bool:
    return any(child.unsaved for child in node.children.values())
