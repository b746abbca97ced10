"""The prefix cache's tree: which prefixes are computed, and in which tier. Pure host logic, without a clock.

A node is one page of tokens; its prefix is the pages on the way to it from the root of its namespace. It has a page of
the device tier, a copy in the host tier, or both; a node that has neither leaves the tree at once. Both tiers are kept
elsewhere: the tree holds the ids alone, and whoever is handed an id owns it.

What always holds (`check` asserts it):

    parents are at least as warm as children   above a device page there are device pages only
    a lock holds its whole path                 `locks` counts the locks on a node and below it
    a use of a node is a use of its path        so `last_used` never grows from a parent to a child

Hence what may leave a tier next is always a node without locks that has no child in that tier, and the least recently
used of these are found by three queues: device pages to evict, device pages to save, host copies to prune.
"""

from array import array
from collections.abc import Iterator, Sequence

from rekindle.prefix_nodes import FORGOTTEN, Evicted, Ledger, Node


class PrefixTree:
    """Every cached prefix of every namespace.

    Matching, publishing and locking cost O(pages of the path); evicting, saving and pruning O(log n) a page.

    Attributes:
        page_size: tokens of a node.
    """

    def __init__(self, page_size: int):
        self.page_size = page_size
        self._width = page_size * array("i").itemsize
        self._uses = 0
        self._roots: dict[str, Node] = {}
        self._forgotten: set[Node] = set()
        self._ledger = Ledger()

    # Reading

    @property
    def nodes(self) -> int:
        """How many nodes there are, roots not counted."""
        return self._ledger.nodes

    @property
    def device_pages(self) -> int:
        """How many nodes have a device page."""
        return self._ledger.device_pages

    @property
    def host_pages(self) -> int:
        """How many nodes have a host copy."""
        return self._ledger.host_pages

    @property
    def evictable(self) -> int:
        """How many device pages `evict` would free now, if asked for all; kept as a count."""
        return self._ledger.evictable

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that have a root, oldest first."""
        return list(self._roots)

    def match(self, namespace: str, tokens: Sequence[int]) -> list[Node]:
        """The nodes of the longest cached prefix, in order: first those in the device tier, then host copies alone.

        Nothing is touched: lock the last node to use them.
        """
        found: list[Node] = []
        node = self._roots.get(namespace)
        if node is not None:
            for key in self._keys(tokens):
                node = node.children.get(key)
                if node is None:
                    break
                found.append(node)
        return found

    def path(self, node: Node) -> list[Node]:
        """The nodes of its prefix, itself last, as `match` gives them; none for a root."""
        return node.upward()[-2::-1]

    def tokens_of(self, node: Node) -> list[int]:
        """The tokens of its page."""
        return array("i", node.key).tolist()

    def key_of(self, tokens: Sequence[int]) -> bytes | None:
        """The key of one page of tokens; None if they are fewer."""
        return next(self._keys(tokens), None)

    def walk(self, namespace: str | None = None) -> Iterator[Node]:
        """All nodes, or those of one namespace, parents before children; the tree must not change meanwhile."""
        if namespace is None:
            stack = [*self._roots.values(), *self._forgotten]
        else:
            stack = [self._roots[namespace]] if namespace in self._roots else []
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Assert every invariant, by a walk over the whole tree."""
        for root in self._forgotten:
            assert root.children or root.locks, "a forgotten root is kept for nothing"
        for node in [*self._roots.values(), *self._forgotten, *self.walk()]:
            node.check(self._width)
        self._ledger.check(self.walk())

    # Locks

    def root(self, namespace: str) -> Node:
        """Where prefixes of the namespace begin; made if there is none. Lock it at once: unused, it may be dropped."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(namespace.encode(), None)
        return root

    def hit(self, node: Node) -> None:
        """Count that a request found the node's path."""
        for each in node.upward():
            each.hits += 1

    def lock(self, node: Node) -> None:
        """Use the node's path and hold it: until `unlock`, it keeps its tiers."""
        assert not node.gone, "a node that left the tree cannot be locked: match again"
        upward = node.upward()
        assert self._has_root(upward[-1]), "a root that was dropped cannot be locked: ask for it again"
        used = self._use(upward[-1])
        for each in upward:
            self._ledger.hold(each, used)

    def unlock(self, node: Node) -> None:
        """Give back one lock of the node, gone or not; its path counts as used until now."""
        upward = node.upward()
        used = self._use(upward[-1])
        for each in upward:
            self._ledger.release(each, used)
        self._drop_if_empty(upward[-1])

    # Device tier

    def publish(self, tip: Node, tokens: Sequence[int], pages: Sequence[int]) -> tuple[Node, list[int]]:
        """Add computed pages below a locked node, and move one lock from it to the last of them.

        Args:
            tip: a locked root, or a locked node with a device page.
            tokens: what follows it, `page_size` tokens for each page.
            pages: the device pages where they were computed.

        Returns:
            The node that is locked now, and the pages that were not taken, because their tokens had a device page
            already: these stay the caller's.
        """
        assert tip.locks, "published below a node that is not locked"
        assert tip.on_device, "published below a node that is not in the device tier"
        assert len(tokens) == len(pages) * self.page_size, "published other than whole pages"
        node, spare, created = tip, [], 0
        for key, page in zip(self._keys(tokens), pages, strict=True):
            child = node.children.get(key)
            if child is None:
                # Locked from the start, so neither it nor its parent belongs into a queue.
                child = node.children[key] = Node(key, node, page, locks=1, last_used=tip.last_used)
                node.device_children += 1
                node.unsaved_children += 1
                created += 1
            else:
                self._ledger.hold(child, tip.last_used)
                if child.page is None:
                    self._ledger.move(child, page, child.host)
                else:
                    spare.append(page)
            node = child
        self._ledger.nodes += created
        self._ledger.device_pages += created
        return node, spare

    def attach(self, nodes: Sequence[Node], pages: Sequence[int]) -> list[int]:
        """Give device pages to nodes that were onloaded; they keep their host copies.

        Args:
            nodes: a part of a path, in order, below a node in the device tier.
            pages: a device page for each, with the keys and values of its host copy.

        Returns:
            The pages that were not taken, because their node has one meanwhile, or has left the tree.
        """
        spare = []
        for node, page in zip(nodes, pages, strict=True):
            if node.gone or node.page is not None:
                spare.append(page)
            else:
                assert node.parent is not None
                assert node.parent.on_device, "attached below a colder node"
                self._ledger.move(node, page, node.host)
        return spare

    def evict(self, count: int) -> Evicted:
        """Free up to `count` device pages, least recently used first, tails before heads.

        A node with a host copy stays without its page. One without leaves the tree, and what is below it too: the host
        tier has to free those entries.
        """
        evicted = Evicted()
        while len(evicted.pages) < count and (node := self._ledger.to_evict.pop()) is not None:
            if node.host is None:
                self._cut(node, evicted)
            else:
                assert node.page is not None
                evicted.pages.append(node.page)
                self._ledger.move(node, None, node.host)
        return evicted

    # Host tier

    def next_to_save(self, count: int) -> list[Node]:
        """Up to `count` nodes to copy to the host tier, least recently used first, tails before heads.

        They count as being saved until `saved` or `save_failed`; meanwhile they may be locked, and evicted too.
        """
        nodes: list[Node] = []
        while len(nodes) < count and (node := self._ledger.to_save.pop()) is not None:
            self._ledger.move(node, node.page, None, saving=True)
            nodes.append(node)
        return nodes

    def saved(self, node: Node, entry: int) -> bool:
        """The node's copy is in the host tier. False if it is not wanted any more: then the entry is the caller's."""
        if not node.saving:
            return False
        self._ledger.move(node, node.page, entry)
        return True

    def save_failed(self, node: Node) -> None:
        """The node could not be copied: it may be chosen again."""
        if node.saving:
            self._ledger.move(node, node.page, None)

    def prune(self, count: int) -> list[int]:
        """Drop up to `count` host copies, least recently used first, tails before heads; the entries to free.

        A node with a device page keeps it, and may be saved again.
        """
        entries: list[int] = []
        while len(entries) < count and (node := self._ledger.to_prune.pop()) is not None:
            entries += self.drop_host(node)
        return entries

    def drop_host(self, node: Node) -> list[int]:
        """Drop a host copy, locked or not, as when it proved unreadable; the entries to free.

        Without a device page the node leaves the tree, and what is below it too. A lock on one of these has still to be
        given back.
        """
        if node.host is None:
            return []
        if node.page is None:
            dropped = Evicted()
            self._cut(node, dropped)
            return dropped.entries
        entry = node.host
        self._ledger.move(node, node.page, None)
        return [entry]

    def restore(self, namespace: str, tokens: Sequence[int], entries: Sequence[int]) -> list[int]:
        """Add nodes that have a host copy alone, as read from a snapshot; their path counts as used now.

        Args:
            namespace: whose prefix it is.
            tokens: a prefix, `page_size` tokens for each entry.
            entries: where the host tier has its pages.

        Returns:
            The entries that were not taken, because their tokens had a node already; an entry that such a node
            already has is not among them.
        """
        assert len(tokens) == len(entries) * self.page_size, "restored other than whole pages"
        root, spare = self.root(namespace), []
        node, used = root, self._use(root)
        root.last_used = used
        for key, entry in zip(self._keys(tokens), entries, strict=True):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = Node(key, node, last_used=used)
                self._ledger.nodes += 1
                self._ledger.move(child, None, entry)
            else:
                child.last_used = used
                self._ledger.place(child)
                if child.host != entry:
                    spare.append(entry)
            node = child
        self._drop_if_empty(root)
        return spare

    def forget(self, namespace: str) -> Evicted:
        """Never match the namespace's prefixes again; what is not locked leaves the tree at once.

        The rest stays until it is unlocked, and is then the first to be evicted and pruned; it is never saved. The
        namespace may be used anew right away.
        """
        evicted = Evicted()
        root = self._roots.pop(namespace, None)
        if root is None:
            return evicted
        self._forgotten.add(root)
        stack = [root]
        while stack:
            node = stack.pop()
            node.last_used = FORGOTTEN
            if node.saving:
                self._ledger.move(node, node.page, None)
            for child in list(node.children.values()):
                if child.locks:
                    stack.append(child)
                else:
                    self._ledger.cut(child, evicted)
        self._drop_if_empty(root)
        return evicted

    # The tree's own

    def _keys(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """The keys of the whole pages."""
        packed, width = array("i", tokens).tobytes(), self._width
        return (packed[at : at + width] for at in range(0, len(packed) - width + 1, width))

    def _use(self, root: Node) -> int:
        """The count of a new use of a path from this root."""
        self._uses += 1
        return FORGOTTEN if root.last_used == FORGOTTEN else self._uses

    def _cut(self, node: Node, into: Evicted) -> None:
        assert node.parent is not None
        self._ledger.cut(node, into)
        self._drop_if_empty(node.parent)

    def _has_root(self, root: Node) -> bool:
        return root in self._forgotten or self._roots.get(root.key.decode()) is root

    def _drop_if_empty(self, node: Node) -> None:
        """Let a root go that nobody needs, or namespaces that were used once would add up."""
        if node.parent is None and not node.children and not node.locks:
            if node in self._forgotten:
                self._forgotten.remove(node)
            else:
                del self._roots[node.key.decode()]
