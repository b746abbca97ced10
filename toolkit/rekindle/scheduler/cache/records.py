"""The disk tier as the prefix tree knows it: which node each record is a copy of, and what to write to disk next."""

from collections import OrderedDict
from collections.abc import Iterable

from rekindle.scheduler.cache.nodes import Evicted, Node


class Records:
    """The records of all nodes, and the queue of those that are due for one.

    A page is due once its parent is on disk or on its way there, so that what is on disk can be found from its root.
    Locks do not matter, because the content of a page never changes.

    Attributes:
        records: the node of each record.
    """

    def __init__(self) -> None:
        self.records: dict[int, Node] = {}
        # In the order in which they became due; a plain dict would take O(n) to find its first after many left.
        self._due: OrderedDict[Node, None] = OrderedDict()

    def choose(self, count: int) -> list[Node]:
        """Up to `count` nodes that are being archived from now on, those that became due first before others."""
        nodes: list[Node] = []
        while len(nodes) < count and self._due:
            node, _ = self._due.popitem(last=False)
            self.change(node, None, archiving=True)
            nodes.append(node)
        return nodes

    def change(self, node: Node, record: int | None, *, archiving: bool = False) -> None:
        """Change the disk copy of a node that has a parent."""
        assert record not in self.records, "a record of two nodes"
        before = node.archivable_below
        if node.disk is not None:
            del self.records[node.disk]
        node.disk, node.archiving = record, archiving
        if record is not None:
            self.records[record] = node
        self.place(node)
        if node.archivable_below != before:
            for child in node.children.values():
                self.place(child)

    def remove(self, node: Node, into: Evicted) -> None:
        """Let a node go that leaves the tree with all below it, or whose namespace was forgotten."""
        if node.disk is not None:
            into.records.append(node.disk)
            del self.records[node.disk]
        node.disk, node.archiving = None, False
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
        assert len(self.records) == len(stored), "records are miscounted"
        assert all(self.records.get(node.disk) is node for node in stored if node.disk is not None), "a record is lost"
        due = [node for node in nodes if node.due]
        assert len(self._due) == len(due), "nodes that are not due are to be archived"
        assert all(node in self._due for node in due), "a node that is due is not to be archived"
