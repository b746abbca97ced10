"""Nodes of the prefix tree, and the invariants between a node and its children."""

from dataclasses import dataclass, field

from rekindle.core.page import STATE_KEY, digest_below

FORGOTTEN = -1
"""`last_used` of every node in a forgotten namespace; these nodes are evicted and pruned first."""


@dataclass(slots=True, eq=False)
class Node:
    """One page of tokens below its parent, a state after its parent's tokens, or the root of a namespace.

    States and roots have no page, and states have no children.

    Attributes:
        key: the key of its page, see `page_key`; `STATE_KEY` for a state; for a root, the namespace.
        parent: None for a root. It is kept when the node leaves the tree.
        page: its page in the device tier.
        host: the entry of its host copy.
        disk: the record of its copy on disk.
        locks: the number of locks on it and on its descendants.
        last_used: the tree's count of uses at its last lock or unlock.
        hits: the number of requests admitted with this cached prefix.
        writeback: whether it is being written to disk.
        is_provisional: whether it is the state of a running request, which a later one replaces: it is not written.
        is_crowded_out: whether its copy left the disk to make room, or had none there, without a hit since then.
        digest: the result of `digest_of`; None before the first call.
        device_children: the number of children with a device page.
        host_children: the number of children with a host copy.
        device_only_children: the number of children with a device page and no host copy.
        depth: the number of pages in its prefix; of a state, in the prefix that it follows.
        children: the nodes that continue its prefix, by key.
    """

    key: bytes = field(repr=False)
    parent: "Node | None" = field(repr=False)
    page: int | None = None
    host: int | None = None
    disk: int | None = None
    locks: int = 0
    last_used: int = 0
    hits: int = 0
    writeback: bool = False
    is_provisional: bool = False
    is_crowded_out: bool = False
    digest: bytes | None = field(default=None, repr=False)
    device_children: int = 0
    host_children: int = 0
    device_only_children: int = 0
    depth: int = 0
    children: dict[bytes, "Node"] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.depth = self.parent.depth + (not self.is_state)

    @property
    def is_state(self) -> bool:
        """True for a state of its parent's prefix."""
        return self.key == STATE_KEY and self.parent is not None

    @property
    def state(self) -> "Node | None":
        """The state after its prefix, or None."""
        return self.children.get(STATE_KEY)

    @property
    def branches(self) -> list["Node"]:
        """The children without the state: the pages that continue the prefix."""
        return [child for child in self.children.values() if not child.is_state]

    @property
    def is_gone(self) -> bool:
        """True if the node has left the tree for good."""
        return not self.in_memory and self.disk is None and self.parent is not None

    @property
    def in_memory(self) -> bool:
        """True if the node has a device page or a host copy."""
        return self.page is not None or self.host is not None

    @property
    def on_device(self) -> bool:
        """True if the whole prefix is in the device tier; true of a root."""
        return self.page is not None or self.parent is None

    @property
    def device_only(self) -> bool:
        """True if the node has a device page and no host copy."""
        return self.page is not None and self.host is None

    @property
    def children_writable(self) -> bool:
        """True if its children may be written: it is on disk, or being written, or a root."""
        return self.disk is not None or self.writeback or self.parent is None

    @property
    def is_due(self) -> bool:
        """True if the node waits to be written to disk."""
        if self.parent is None or self.is_gone or self.last_used == FORGOTTEN:
            return False
        if self.disk is not None or self.writeback or self.is_crowded_out or self.is_provisional:
            return False
        return self.parent.children_writable

    def upward(self) -> list["Node"]:
        """Return the node and its ancestors, the root last."""
        node, nodes = self, [self]
        while node.parent is not None:
            node = node.parent
            nodes.append(node)
        return nodes

    def check(self, width: int) -> None:
        """Assert the invariants between a node in the tree and its children, with keys of at least `width` bytes."""
        children = self.children.values()
        assert not self.is_gone, "a node without a tier is in the tree"
        assert not self.writeback or self.disk is None, "a node on disk is being written"
        assert not self.writeback or self.parent is not None, "a root is being written"
        if self.last_used == FORGOTTEN:
            assert self.disk is None, "a forgotten node has a record"
            assert not self.writeback, "a forgotten node is being written"
        if self.digest is not None:
            above = b"root" if self.parent is None else self.parent.digest
            assert above is not None, "a node has a digest and its parent has none"
            assert self.digest == digest_below(above, self.key), "a digest is that of another prefix"
        assert self.device_children == sum(child.page is not None for child in children), "device pages are miscounted"
        assert self.host_children == sum(child.host is not None for child in children), "host copies are miscounted"
        assert self.device_only_children == sum(child.device_only for child in children), (
            "pages without a host copy are miscounted"
        )
        assert self.locks >= sum(child.locks for child in children), "a path is not locked as a whole"
        for key, child in self.children.items():
            assert child.parent is self, "a child has another parent"
            assert child.key == key, "a child is found under another's tokens"
            assert len(key) >= width or child.is_state, "a key is not one page"
            assert not self.is_state, "something is below a state"
            assert not child.is_state or child.page is None, "a state has a page"
            assert child.page is None or self.on_device, "a child is warmer than its parent"
            assert child.last_used <= self.last_used, "a child was used without its parent"
            assert (child.last_used == FORGOTTEN) == (self.last_used == FORGOTTEN), "a part of a path is forgotten"


@dataclass(slots=True)
class Evicted:
    """Ids released by the tree, for the caller to free.

    Attributes:
        pages: device pages.
        entries: entries of the host tier.
    """

    pages: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)


def digest_of(node: Node) -> bytes:
    """Return the SHA-256 of the parent's digest and the node's key, equal for equal prefixes in every process."""
    ancestor, below = node, []
    while ancestor.digest is None and ancestor.parent is not None:
        below.append(ancestor)
        ancestor = ancestor.parent
    digest = ancestor.digest = ancestor.digest or digest_below(b"root", ancestor.key)
    for each in reversed(below):
        digest = each.digest = digest_below(digest, each.key)
    return digest
