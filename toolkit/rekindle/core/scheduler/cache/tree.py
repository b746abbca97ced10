"""Tree of the prefix cache: the computed prefixes, in each tier. Pure host logic, without a clock.

A node is one page of tokens; its prefix consists of the pages on the path from the root of its namespace. A node has a
page in the device tier, a copy in the host tier, a copy on disk, or several of these; without any it leaves the tree at
once. Contents are stored elsewhere: the tree holds only ids, and the receiver of an id owns it.

The state of a model's layers after a prefix is a leaf below the prefix's last node. It has copies and no page.

Invariants, asserted by `check`:

    parents are at least as warm as children   above a device page there are device pages only; below the last of them,
                                               copies in the host tier and on disk follow each other in any order
    a lock holds its whole path                `locks` counts the locks on a node and below it
    a use of a node is a use of its path       so `last_used` never grows from a parent to a child

Hence the next node to leave a tier has no locks and no child in the same tier. Three queues find the least recently
used of these nodes: device pages to evict, device pages to offload, host copies to prune. Copies on disk stay until
their store removes one; a fourth queue has the nodes to write next.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from rekindle.core.page import NO_MARKS, STATE_KEY, Marks, StoredPage, digest_below, page_key, tokens_of
from rekindle.core.scheduler.cache.ledger import Ledger
from rekindle.core.scheduler.cache.nodes import FORGOTTEN, Evicted, Node, digest_of
from rekindle.core.scheduler.cache.records import Records
from rekindle.core.scheduler.cache.roots import Roots

NextPage = tuple[Node | str, bytes]
"""The previous node, or the namespace, of a page, and the key of the page's tokens."""


class PrefixTree:
    """The cached prefixes of one group of devices, in all namespaces.

    A `PrefixCache` owns the tree. Sessions and policies read it between two messages, through `Scheduler.look`.

    Matching, publishing and locking cost O(pages of the path); evicting, offloading and pruning O(log n) a page.

    Args:
        page_size: tokens of a node.
        state_pages: the room of a state in the host tier, in pages.

    Attributes:
        page_size: tokens of a node.
        roots: the root of each namespace.
        records: the records on disk, and the nodes to write next.
        ledger: the counts of nodes by tier, and the nodes next to leave one.
    """

    def __init__(self, page_size: int, state_pages: int = 0):
        self.page_size = page_size
        self._width = page_size * array("i").itemsize
        self._uses = 0
        self.roots = Roots()
        self.records = Records()
        self.ledger = Ledger(self.records, state_pages)

    # Reading

    def match(
        self, namespace: str, tokens: Sequence[int], before: Sequence[Node] = (), marks: Marks = NO_MARKS
    ) -> list[Node]:
        """Return the nodes of the longest cached prefix, root first; nodes with only copies come last.

        The tree does not change. Lock the last node to use the path.

        Args:
            before: an earlier result for these tokens or fewer, no older than the last `forget` of the namespace. Its
                nodes still in the tree are not looked up again.
            marks: the marks of images among the tokens.
        """
        nodes = list(before)
        while nodes and nodes[-1].is_gone:
            nodes.pop()
        node = nodes[-1] if nodes else self.roots.find(namespace)
        if node is not None:
            for key in self._keys(tokens, marks, len(nodes)):
                node = node.children.get(key)
                if node is None:
                    break
                nodes.append(node)
        return nodes

    def next_page(self, after: Node | str, tokens: Sequence[int], marks: Marks = NO_MARKS) -> NextPage | None:
        """Return the identity of the page after a cached prefix of `tokens`.

        Args:
            after: the last node of the prefix; the namespace if nothing is cached.
            tokens: all tokens, including the prefix.
            marks: the marks of images among them.

        Returns:
            None if the remaining tokens do not fill a page.
        """
        index = 0 if isinstance(after, str) else after.depth
        page = tokens[index * self.page_size : (index + 1) * self.page_size]
        return (after, page_key(page, marks.get(index, b""))) if len(page) == self.page_size else None

    def path(self, node: Node) -> list[Node]:
        """Return the nodes of a node's prefix, itself last, as `match` does; an empty list for a root."""
        return node.upward()[-2::-1]

    def tokens_of(self, node: Node) -> list[int]:
        """Return the tokens of a node's page."""
        return tokens_of(node.key, self.page_size)

    def digest(self, node: Node) -> str:
        """Return the identity of a prefix in every process, as 64 hexadecimal digits.

        For a root it identifies the namespace. It is computed on first use, together with the digests of the ancestors.
        """
        return digest_of(node).hex()

    def walk(self, namespace: str | None = None) -> Iterator[Node]:
        """Yield all nodes, or those of one namespace, parents before children; the tree must not change meanwhile."""
        return self.roots.walk(namespace)

    def check(self) -> None:
        """Assert every invariant, by a walk over the whole tree."""
        self.roots.check(self._width)
        self.ledger.check(self.walk())
        self.records.check(self.walk())

    # Locks

    def root(self, namespace: str) -> Node:
        """Return the root of a namespace; create it if there is none. Lock it at once, or it may be dropped."""
        return self.roots.make(namespace)

    def hit(self, node: Node) -> None:
        """Count a hit on the node's path."""
        for each in node.upward():
            each.hits += 1

    def lock(self, node: Node) -> None:
        """Use and lock the node's path: until `unlock`, no page of the path is evicted or pruned."""
        assert not node.is_gone, "a node that left the tree cannot be locked: match again"
        upward = node.upward()
        assert upward[-1] in self.roots, "a root that was dropped cannot be locked: get it again"
        used = self._use(upward[-1])
        for each in upward:
            self.ledger.lock(each, used)

    def unlock(self, node: Node) -> None:
        """Release one lock of the node, in the tree or not; its path counts as used until now."""
        upward = node.upward()
        used = self._use(upward[-1])
        for each in upward:
            self.ledger.unlock(each, used)
        self.roots.drop_if_empty(upward[-1])

    # Device tier

    def publish(
        self, tip: Node, tokens: Sequence[int], pages: Sequence[int], marks: Marks = NO_MARKS
    ) -> tuple[Node, list[int]]:
        """Add computed pages below a locked node, and move one lock from it to the last page.

        Args:
            tip: a locked root, or a locked node with a device page.
            tokens: the tokens after it, `page_size` for each page.
            pages: the device pages with the computed tokens.
            marks: the marks of images in the whole sequence, the prefix included.

        Returns:
            The newly locked node, and the spare pages. A page is spare if the tree has a device page of the same
                tokens already; the caller keeps it.
        """
        assert tip.locks, "published below a node that is not locked"
        assert tip.on_device, "published below a node that is not in the device tier"
        assert len(tokens) == len(pages) * self.page_size, "published other than whole pages"
        node, spare, created = tip, [], False
        for index, page in enumerate(pages):
            own = tokens[index * self.page_size : (index + 1) * self.page_size]
            key = page_key(own, marks.get(node.depth, b""))
            child = node.children.get(key)
            if child is None:
                # Locked from the start, so neither it nor its parent belongs into a queue.
                child = node.children[key] = Node(key, node, page, locks=1, last_used=tip.last_used)
                self.ledger.add(child)
                if not created:
                    self.records.place(child)  # later nodes are below a new page, which is not on disk
                created = True
            else:
                self.ledger.lock(child, tip.last_used)
                if child.page is None:
                    self.ledger.move(child, page, child.host)
                else:
                    spare.append(page)
            node = child
        return node, spare

    def add_state(self, node: Node, entry: int, *, provisional: bool = False) -> Node | None:
        """Add the state after a prefix, with a host copy; return None if the tree has one already.

        Args:
            node: the last node of the prefix, in the tree.
            entry: the entry of the host copy.
            provisional: see `Node.is_provisional`; until `finish_state`.
        """
        assert node.parent is not None, "a state of no tokens"
        assert not node.is_gone, "a state of a prefix that left the tree"
        if node.state is not None:
            return None
        state = node.children[STATE_KEY] = Node(STATE_KEY, node, host=entry, last_used=node.last_used)
        state.is_provisional = provisional
        self.ledger.add(state)
        self.ledger.place(state)
        self.ledger.place(node)
        self.records.place(state)
        return state

    def finish_state(self, state: Node) -> None:
        """Let a provisional state be written to disk."""
        state.is_provisional = False
        self.records.place(state)

    def attach(self, nodes: Sequence[Node], pages: Sequence[int]) -> None:
        """Give device pages to onloaded nodes; their copies stay.

        Args:
            nodes: a part of a path without pages, in order, below a node in the device tier.
            pages: a device page for each node.
        """
        for node, page in zip(nodes, pages, strict=True):
            assert node.page is None, "attached to a node that has a page"
            assert not node.is_gone, "attached to a node that left the tree"
            assert node.parent is not None, "attached to a root"
            assert node.parent.on_device, "attached below a colder node"
            self.ledger.move(node, page, node.host)

    def evict(self, count: int) -> Evicted:
        """Free up to `count` device pages, least recently used first, tails before heads.

        A node with a copy, in the host tier or on disk, stays without its page. A node without a copy leaves the tree
        with its descendants.
        """
        evicted = Evicted()
        while len(evicted.pages) < count and (node := self.ledger.to_evict.pop()) is not None:
            if node.host is None and node.disk is None:
                self._cut(node, evicted)
            else:
                assert node.page is not None
                evicted.pages.append(node.page)
                self.ledger.move(node, None, node.host)
        return evicted

    # Host tier

    def next_to_offload(self, count: int) -> Iterator[Node]:
        """Yield up to `count` nodes without a host copy, least recently used first, tails before heads.

        Call `add_host_copy` for each node before the next one is requested.
        """
        while count > 0 and (node := self.ledger.to_offload.pop()) is not None:
            yield node
            count -= 1

    def add_host_copy(self, node: Node, entry: int) -> None:
        """Give a host copy to a node with a page and no copy, locked or not."""
        assert node.page is not None, "offloaded a page that is not there"
        assert node.host is None, "offloaded a page twice"
        self.ledger.move(node, node.page, entry)

    def prune(self, count: int) -> Evicted:
        """Drop host copies with the room of `count` pages, or all, least recently used first, tails before heads.

        A node with a device page or a copy on disk stays, and may be offloaded again once it has a page. Any other node
        leaves the tree with its descendants. If a descendant on disk has host copies below it, more than `count` leave.
        """
        pruned, most = Evicted(), self.ledger.host_room - count
        while self.ledger.host_room > most and (node := self.ledger.to_prune.pop()) is not None:
            self._drop_host(node, pruned)
        return pruned

    def drop_host(self, node: Node) -> Evicted:
        """Drop a node's host copy, if it has one, locked or not.

        Without a device page or a copy on disk the node leaves the tree with its descendants. Locks on these nodes
        still have to be released.
        """
        dropped = Evicted()
        if node.host is not None:
            self._drop_host(node, dropped)
        return dropped

    # Disk tier

    def crowd_out(self, record: int) -> Evicted:
        """Drop a copy removed from the disk to make room, as `drop_disk` does; a later hit makes the node due again.

        Otherwise pages beyond the disk's capacity would push each other out for ever.
        """
        node = self.records.node_of(record)
        if node is None:
            return Evicted()
        node.is_crowded_out = True
        return self.drop_disk(node)

    def drop_disk(self, node: Node) -> Evicted:
        """Drop a node's copy on disk, if it has one, locked or not. A remaining node may be written again.

        Without another tier the node leaves the tree with its descendants. Locks on these nodes still have to be
        released.
        """
        dropped = Evicted()
        if node.disk is not None and node.in_memory:
            self.records.change(node, None)
        elif node.disk is not None:
            self._cut(node, dropped)
        return dropped

    def restore(self, pages: Iterable[StoredPage]) -> None:
        """Add nodes with only a copy on disk, and give records to nodes without one.

        Args:
            pages: parents before children, states among them. A page is skipped if its parent is unknown or a state,
                its key is not one page, its digest does not match its prefix, or its node has a record.
        """
        by_namespace: dict[str, dict[str, Node]] = {}
        for page in pages:
            if page.namespace not in by_namespace:  # its digests are computed once
                there = (self.root(page.namespace), *self.walk(page.namespace))
                by_namespace[page.namespace] = {self.digest(node): node for node in there}
            by_digest = by_namespace[page.namespace]
            parent = by_digest.get(page.parent)
            if parent is None or parent.is_state or (len(page.key) < self._width and not page.is_state):
                continue
            if page.is_state and parent.parent is None:
                continue
            if page.digest != digest_below(digest_of(parent), page.key).hex():
                continue
            node = parent.children.get(page.key)
            if node is None:
                node = parent.children[page.key] = by_digest[page.digest] = Node(page.key, parent)
                self.ledger.add(node)
            if node.disk is None:
                self.records.change(node, page.record)
        for namespace in by_namespace:
            self.roots.drop_if_empty(self.root(namespace))

    def forget(self, namespace: str) -> Evicted:
        """Forget a namespace: its prefixes no longer match.

        Nodes that are unlocked, or only on disk, leave the tree at once. The others stay until their unlock, and are
        then the first to be evicted and pruned. They are never offloaded or written, and lose their records. The
        namespace can be used anew right away.
        """
        evicted = Evicted()
        root = self.roots.forget(namespace)
        if root is None:
            return evicted
        stack = [root]
        while stack:
            for child in list(stack.pop().children.values()):
                if child.locks and child.in_memory:
                    child.last_used = FORGOTTEN
                    self.records.remove(child)
                    stack.append(child)
                else:
                    self.ledger.cut(child, evicted)
        self.roots.drop_if_empty(root)
        return evicted

    # Helpers

    def _keys(self, tokens: Sequence[int], marks: Marks, first: int) -> Iterator[bytes]:
        """Yield the keys of the whole pages, from the page `first` on."""
        size = self.page_size  # page by page, to avoid packing a whole uncached prompt at each lookup
        pages = range(first, len(tokens) // size)
        return (page_key(tokens[page * size : (page + 1) * size], marks.get(page, b"")) for page in pages)

    def _use(self, root: Node) -> int:
        """Count a use of a path from this root; return the count."""
        self._uses += 1
        return FORGOTTEN if root.last_used == FORGOTTEN else self._uses

    def _cut(self, node: Node, into: Evicted) -> None:
        assert node.parent is not None
        self.ledger.cut(node, into)
        self.roots.drop_if_empty(node.parent)

    def _drop_host(self, node: Node, into: Evicted) -> None:
        if node.page is None and node.disk is None:
            self._cut(node, into)
        else:
            assert node.host is not None
            into.entries.append(node.host)
            self.ledger.move(node, node.page, None)
