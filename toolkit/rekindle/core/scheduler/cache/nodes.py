"""The nodes of the prefix tree: what each one has, and what must hold between a node and its children."""

from dataclasses import dataclass, field

from rekindle.core.page import digest_below

FORGOTTEN = -1
"""`last_used` of every node whose namespace was forgotten: before all others."""


@dataclass(slots=True, eq=False)
class Node:
    """One page of tokens below its parent, or the root of a namespace, which has no page.

    Attributes:
        key: its tokens as int32 bytes; of a root, the namespace.
        parent: None for a root. Kept when the node leaves the tree.
        page: its page in the device tier.
        host: the entry of its host copy.
        disk: the record of its copy on disk.
        locks: how many locks are held on it and on nodes below it.
        last_used: the tree's count of uses when it was last locked or unlocked.
        hits: how many requests found it.
        writeback: whether it is on its way to disk.
        crowded_out: whether its copy left the disk to make room, and no request found it since then.
        digest: its `digest_of`, once somebody asked for it.
        device_children: how many children have a device page.
        host_children: how many children have a host copy.
        device_only_children: how many children have a device page and no host copy.
        depth: how many nodes are above it, which is how many pages its prefix has.
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
    crowded_out: bool = False
    digest: bytes | None = field(default=None, repr=False)
    device_children: int = 0
    host_children: int = 0
    device_only_children: int = 0
    depth: int = 0
    children: dict[bytes, "Node"] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.depth = self.parent.depth + 1

    @property
    def gone(self) -> bool:
        """Tell whether it has left the tree, and will never be in it again."""
        return not self.in_memory and self.disk is None and self.parent is not None

    @property
    def in_memory(self) -> bool:
        """Tell whether it has a device page or a host copy."""
        return self.page is not None or self.host is not None

    @property
    def on_device(self) -> bool:
        """Tell whether the whole prefix up to here is in the device tier; true of a root."""
        return self.page is not None or self.parent is None

    @property
    def device_only(self) -> bool:
        """Tell whether it has a device page and no host copy."""
        return self.page is not None and self.host is None

    @property
    def archivable_below(self) -> bool:
        """Tell whether its children may be archived: it is on disk, or on its way there, or a root."""
        return self.disk is not None or self.writeback or self.parent is None

    @property
    def due(self) -> bool:
        """Tell whether it is to be archived, and is not on its way to disk yet."""
        if self.parent is None or self.gone or self.last_used == FORGOTTEN:
            return False
        if self.disk is not None or self.writeback or self.crowded_out:
            return False
        return self.parent.archivable_below

    def upward(self) -> list["Node"]:
        """Return the node, its parent, and so on to the root."""
        node, nodes = self, [self]
        while node.parent is not None:
            node = node.parent
            nodes.append(node)
        return nodes

    def check(self, width: int) -> None:
        """Assert what must hold between a node in the tree and its children, whose keys have `width` bytes."""
        children = self.children.values()
        assert not self.gone, "a node without a tier is in the tree"
        assert not self.writeback or self.disk is None, "a node is archived twice"
        assert not self.writeback or self.parent is not None, "a root is archived"
        if self.last_used == FORGOTTEN:
            assert self.disk is None, "a forgotten node has a record"
            assert not self.writeback, "a forgotten node is archived"
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
            assert len(key) == width, "a node is not one page"
            assert child.page is None or self.on_device, "a child is warmer than its parent"
            assert child.last_used <= self.last_used, "a child was used without its parent"
            assert (child.last_used == FORGOTTEN) == (self.last_used == FORGOTTEN), "a part of a path is forgotten"


@dataclass(slots=True)
class Evicted:
    """The ids that the tree let go of, which are the caller's now.

    Attributes:
        pages: device pages.
        entries: entries of the host tier.
    """

    pages: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)


def digest_of(node: Node) -> bytes:
    """Return the SHA-256 of the parent's digest and the node's key, which is equal for equal prefixes everywhere."""
    known, unknown = node, []
    while known.digest is None and known.parent is not None:
        unknown.append(known)
        known = known.parent
    digest = known.digest = known.digest or digest_below(b"root", known.key)
    for each in reversed(unknown):
        digest = each.digest = digest_below(digest, each.key)
    return digest
