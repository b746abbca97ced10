"""Roots of the prefix tree, one for each namespace."""

from collections.abc import Iterator

from rekindle.core.scheduler.cache.nodes import FORGOTTEN, Node


class Roots:
    """The roots of all namespaces, and of forgotten ones with locked descendants.

    Iteration yields the oldest first and forgotten ones last. Roots without children and locks are dropped, because
    roots of namespaces used only once would accumulate.
    """

    def __init__(self) -> None:
        self._by_namespace: dict[str, Node] = {}
        self._forgotten: dict[Node, None] = {}  # not a set: two runs must walk in the same order

    def __contains__(self, root: Node) -> bool:
        return root in self._forgotten or self._by_namespace.get(root.key.decode()) is root

    def __iter__(self) -> Iterator[Node]:
        yield from self._by_namespace.values()
        yield from self._forgotten

    @property
    def namespaces(self) -> list[str]:
        """The namespaces with a root, forgotten ones excluded, oldest first."""
        return list(self._by_namespace)

    def find(self, namespace: str) -> Node | None:
        """Return the root of a namespace, or None."""
        return self._by_namespace.get(namespace)

    def make(self, namespace: str) -> Node:
        """Return the root of a namespace; create it if there is none."""
        root = self._by_namespace.get(namespace)
        if root is None:
            root = self._by_namespace[namespace] = Node(namespace.encode(), None)
        return root

    def forget(self, namespace: str) -> Node | None:
        """Remove a namespace; return its root, for the caller to forget its descendants, or None without a root."""
        root = self._by_namespace.pop(namespace, None)
        if root is not None:
            self._forgotten[root] = None
            root.last_used = FORGOTTEN
        return root

    def drop_if_empty(self, node: Node) -> None:
        """Drop a root without children and locks; ignore other nodes."""
        if node.parent is None and not node.children and not node.locks:
            if node in self._forgotten:
                del self._forgotten[node]
            else:
                del self._by_namespace[node.key.decode()]

    def walk(self, namespace: str | None) -> Iterator[Node]:
        """Yield all nodes, or the nodes of one namespace, parents before children, without the roots."""
        if namespace is None:
            stack = list(self)
        else:
            stack = [self._by_namespace[namespace]] if namespace in self._by_namespace else []
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def check(self, width: int) -> None:
        """Assert the invariants of every node, given a key's number of bytes."""
        for root in self._forgotten:
            assert root.children or root.locks, "a forgotten root is kept without children and locks"
        for node in [*self, *self.walk(None)]:
            node.check(width)
