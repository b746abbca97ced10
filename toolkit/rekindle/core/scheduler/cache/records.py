"""The disk tier as the prefix tree knows it: which node each record is a copy of, and what to write to disk next."""

from collections import OrderedDict
from collections.abc import Iterable

from rekindle.core.scheduler.cache.nodes import Node


class Records:
    """The node of each record on disk, and the queue of nodes that are due for a record.

    A page is due once its parent is on disk or on its way there, so that what is on disk can be found from its root.
    Locks do not matter, because the content of a page never changes.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        # In the order in which they became due; a plain dict would take O(n) to find its first after many left.
        self._due: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def node_of(self, record: int) -> Node | None:
        """Return the node that has this record; None if no node has it."""
        return self._nodes.get(record)

    def next_to_archive(self, count: int) -> list[Node]:
        """Return up to `count` nodes that are due, parents before children, those that became due first before others.

        They count as being archived until `archived` or `archive_failed`, and may lose their other tiers meanwhile.
        """
        nodes: list[Node] = []
        while len(nodes) < count and self._due:
            node, _ = self._due.popitem(last=False)
            self.change(node, None, writeback=True)
            nodes.append(node)
        return nodes

    def archived(self, node: Node, record: int) -> None:
        """Give a record to a node that is being archived; nothing happens if it left the tree, or has another one."""
        if node.writeback:
            self.change(node, record)

    def archive_failed(self, node: Node) -> None:
        """Let a node that is being archived be chosen again, after all others that are due now."""
        if node.writeback:
            self.change(node, None)

    def wanted(self, node: Node) -> None:
        """Let what left the disk to make room be archived again, on the path of a node that a request found."""
        for each in reversed(node.upward()):
            if each.crowded_out:
                each.crowded_out = False
                self.place(each)

    def change(self, node: Node, record: int | None, *, writeback: bool = False) -> None:
        """Change the record of a node that has a parent."""
        assert record not in self._nodes, "a record of two nodes"
        before = node.archivable_below
        if node.disk is not None:
            del self._nodes[node.disk]
        node.disk, node.writeback = record, writeback
        if record is not None:
            self._nodes[record] = node
        self.place(node)
        if node.archivable_below != before:
            for child in node.children.values():
                self.place(child)

    def remove(self, node: Node) -> None:
        """Let a node go that leaves the tree with all below it, or whose namespace was forgotten."""
        if node.disk is not None:
            del self._nodes[node.disk]
        node.disk, node.writeback = None, False
        self._due.pop(node, None)

    def place(self, node: Node) -> None:
        """Put a node at the end of the queue if it became due, and take it out if it is not due."""
        if node.due:
            self._due.setdefault(node)
        else:
            self._due.pop(node, None)

    def check(self, nodes: Iterable[Node]) -> None:
        """Assert that records and queue are those of these nodes, all that the tree has."""
        nodes = list(nodes)
        stored = [node for node in nodes if node.disk is not None]
        assert len(self._nodes) == len(stored), "records are miscounted"
        assert all(self._nodes.get(node.disk) is node for node in stored if node.disk is not None), "a record is lost"
        due = [node for node in nodes if node.due]
        assert len(self._due) == len(due), "nodes that are not due are to be archived"
        assert all(node in self._due for node in due), "a node that is due is not to be archived"
