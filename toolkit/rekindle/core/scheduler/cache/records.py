"""The disk tier in the prefix tree: the node of each record, and the nodes to write next."""

from collections import OrderedDict
from collections.abc import Iterable

from rekindle.core.scheduler.cache.nodes import Node


class Records:
    """The node of each record on disk, and the queue of nodes to write.

    A node is due once its parent is on disk or being written, so that each record can be found from its root. Locks do
    not matter, because the content of a page never changes.

    Attributes:
        states: the number of states with a record.
    """

    def __init__(self) -> None:
        self.states = 0
        self._nodes: dict[int, Node] = {}
        # Ordered by when a node became due. A plain dict takes O(n) to find its first item after many deletions.
        self._queue: OrderedDict[Node, None] = OrderedDict()

    @property
    def pages(self) -> int:
        """The number of pages with a record."""
        return len(self._nodes) - self.states

    def node_of(self, record: int) -> Node | None:
        """Return the node of a record, or None."""
        return self._nodes.get(record)

    def next_to_write(self, room: int, state_room: int = 1) -> list[Node]:
        """Return due nodes, oldest first and parents before children: one, or as many as `room` pages hold.

        The children of a node follow it, in this batch or first in the next, before older nodes. So a batch has few
        branches, whose pages stay on disk and leave it together.

        Args:
            room: the room of all nodes together, in pages.
            state_room: the room of a state, in pages.

        The nodes count as being written until `finish_write` or `fail_write`, and may lose their other tiers meanwhile.
        """
        nodes: list[Node] = []
        children: list[Node] = []
        while room > 0 and self._queue:
            node = children.pop() if children else next(iter(self._queue))
            del self._queue[node]
            self.change(node, None, writeback=True)
            nodes.append(node)
            room -= state_room if node.is_state else 1
            children += [child for child in reversed(node.children.values()) if child in self._queue]
        for child in children:
            self._queue.move_to_end(child, last=False)
        return nodes

    def finish_write(self, node: Node, record: int) -> None:
        """Give a record to a node being written; ignore nodes outside the tree, or with another record."""
        if node.writeback:
            self.change(node, record)

    def fail_write(self, node: Node) -> None:
        """Queue a node being written again, after all due nodes."""
        if node.writeback:
            self.change(node, None)

    def crowd_out(self, node: Node) -> None:
        """Queue a node being written no more, as the disk has no room for it; `readmit` does."""
        node.is_crowded_out = True
        self.fail_write(node)

    def readmit(self, node: Node) -> None:
        """Queue the crowded-out nodes on a node's path for writing again."""
        for each in reversed(node.upward()):
            if each.is_crowded_out:
                each.is_crowded_out = False
                self.place(each)

    def change(self, node: Node, record: int | None, *, writeback: bool = False) -> None:
        """Change the record of a node, which must have a parent."""
        assert record not in self._nodes, "a record of two nodes"
        before = node.children_writable
        self._remove_record(node)
        node.disk, node.writeback = record, writeback
        if record is not None:
            self._nodes[record] = node
            self.states += node.is_state
        self.place(node)
        if node.children_writable != before:
            for child in node.children.values():
                self.place(child)

    def remove(self, node: Node) -> None:
        """Remove a node and its record, when it leaves the tree or its namespace is forgotten."""
        self._remove_record(node)
        node.disk, node.writeback = None, False
        self._queue.pop(node, None)

    def _remove_record(self, node: Node) -> None:
        if node.disk is not None:
            del self._nodes[node.disk]
            self.states -= node.is_state

    def place(self, node: Node) -> None:
        """Append a node to the queue if it became due; remove it if it is not due."""
        if node.is_due:
            self._queue.setdefault(node)
        else:
            self._queue.pop(node, None)

    def check(self, nodes: Iterable[Node]) -> None:
        """Assert the records and the queue, given all nodes of the tree."""
        nodes = list(nodes)
        stored = [node for node in nodes if node.disk is not None]
        assert len(self._nodes) == len(stored), "records are miscounted"
        assert self.states == sum(node.is_state for node in stored), "records of states are miscounted"
        assert all(self._nodes.get(node.disk) is node for node in stored if node.disk is not None), "a record is lost"
        expected = [node for node in nodes if node.is_due]
        assert len(self._queue) == len(expected), "the queue has nodes that are not due"
        assert all(node in self._queue for node in expected), "the queue lacks a node that is due"
