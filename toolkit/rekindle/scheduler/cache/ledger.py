"""The ledger of the prefix tree: it follows every change of a node, and knows counts and what leaves a tier next."""

from collections.abc import Iterable

from rekindle.scheduler.cache.lru import OldestFirst
from rekindle.scheduler.cache.nodes import FORGOTTEN, Evicted, Node
from rekindle.scheduler.cache.records import Records


class Ledger:
    """What is known of all nodes without walking the tree.

    In both tiers of memory the next to leave is a node without locks that has no child in that tier. Three queues hold
    exactly those nodes: `to_evict` of the device pages, `to_prune` of the host copies, `to_offload` of the device
    pages. Nothing leaves the disk of itself.

    Args:
        archive: is told of what leaves the tree.

    Attributes:
        nodes: how many nodes there are, roots not counted.
        device_pages: how many have a device page.
        host_pages: how many have a host copy.
        in_both: how many have both.
        evictable: how many have a device page, and no lock on them or below them.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self.nodes = self.device_pages = self.host_pages = self.in_both = self.evictable = 0
        self.to_evict: OldestFirst[Node] = OldestFirst()
        self.to_offload: OldestFirst[Node] = OldestFirst()
        self.to_prune: OldestFirst[Node] = OldestFirst()

    def lock(self, node: Node, used: int) -> None:
        """Count one more lock on it or below it."""
        node.locks += 1
        node.last_used = used
        if node.locks == 1:
            self.evictable -= node.page is not None
            self.place(node)

    def unlock(self, node: Node, used: int) -> None:
        """Count one lock less."""
        assert node.locks, "unlocked more often than locked"
        node.locks -= 1
        node.last_used = used
        if not node.locks:
            self.evictable += node.page is not None
            self.place(node)

    def move(self, node: Node, page: int | None, host: int | None, *, saving: bool = False) -> None:
        """Change the device page and the host copy of a node that has a parent."""
        parent = node.parent
        assert parent is not None
        device = (page is not None) - (node.page is not None)
        copies = (host is not None) - (node.host is not None)
        both = (page is not None and host is not None) - (node.page is not None and node.host is not None)
        parent.device_only_children -= node.device_only
        node.page, node.host, node.saving = page, host, saving
        parent.device_only_children += node.device_only
        parent.device_children += device
        parent.host_children += copies
        self.device_pages += device
        self.host_pages += copies
        self.in_both += both
        if not node.locks:
            self.evictable += device
        self.place(node)
        self.place(parent)

    def forget(self, node: Node, into: Evicted) -> None:
        """Make a node one of a forgotten namespace: nothing copies it any more, and it is not on disk."""
        node.last_used = FORGOTTEN
        if node.saving:
            self.move(node, node.page, None)
        self._records.remove(node, into)

    def cut(self, node: Node, into: Evicted) -> None:
        """Take a node and all below it out of the tree; nothing of it that has a device page is locked."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        parent.device_children -= node.page is not None
        parent.host_children -= node.host is not None
        parent.device_only_children -= node.device_only
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
                self.in_both -= below.page is not None
            below.page = below.host = None
            below.saving = False
            self._records.remove(below, into)
            self.place(below)

    def place(self, node: Node) -> None:
        """Put a node into the queues where it belongs now, and take it out of the others."""
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
        """Assert that counts and queues are those of these nodes, all that the tree has."""
        nodes = list(nodes)
        warm = [node for node in nodes if node.page is not None]
        held = [node for node in nodes if node.host is not None]
        assert (self.nodes, self.device_pages, self.host_pages) == (len(nodes), len(warm), len(held)), "wrong counts"
        both = sum(node.host is not None for node in warm)
        assert self.in_both == both, "nodes in both tiers are miscounted"
        assert len({node.page for node in warm}) == len(warm), "a page is in two nodes"
        assert len({node.host for node in held}) == len(held), "an entry of the host tier is in two nodes"
        free = [node for node in warm if not node.locks]
        assert self.evictable == len(free), "pages that can be evicted are miscounted"
        evict = [node for node in free if all(child.page is None for child in node.children.values())]
        save = [n for n in free if n.device_only and n.last_used != FORGOTTEN and not _any_device_only(n)]
        prune = [n for n in held if not n.locks and all(child.host is None for child in n.children.values())]
        for queue, right in ((self.to_evict, evict), (self.to_offload, save), (self.to_prune, prune)):
            queue.check()
            assert len(queue) == len(right), "a queue has nodes that do not belong there"
            assert all(node in queue for node in right), "a queue lacks a node"


def _any_device_only(node: Node) -> bool:
    return any(child.device_only for child in node.children.values())
