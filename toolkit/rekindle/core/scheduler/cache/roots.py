"""Where the prefix tree begins: the root of each namespace."""

from collections.abc import Iterator

from rekindle.core.scheduler.cache.nodes import FORGOTTEN, Node


class Roots:
    """The roots of all namespaces, and those of forgotten ones as long as something below them is locked.

    They are met oldest first, the forgotten ones last.

    A root that nobody needs is dropped, or namespaces that were used once would add up.
    """

    def __init__(self) -> None:
        self._named: dict[str, Node] = {}
        self._forgotten: dict[Node, None] = {}  # not a set: two runs must walk in the same order

    def __contains__(self, root: Node) -> bool:
        return root in self._forgotten or self._named.get(root.key.decode()) is root

    def __iter__(self) -> Iterator[Node]:
        yield from self._named.values()
        yield from self._forgotten

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that have a root and are not forgotten, oldest first."""
        return list(self._named)

    def find(self, namespace: str) -> Node | None:
        """Return the root of a namespace; None if it has none."""
        return self._named.get(namespace)

    def make(self, namespace: str) -> Node:
        """Return the root of a namespace, which is made if there is none."""
        root = self._named.get(namespace)
        if root is None:
            root = self._named[namespace] = Node(namespace.encode(), None)
        return root

    def forget(self, namespace: str) -> Node | None:
        """Drop the name of a root; return the root, for what is below it to be forgotten too."""
        root = self._named.pop(namespace, None)
        if root is not None:
            self._forgotten[root] = None
            root.last_used = FORGOTTEN
        return root

    def drop_if_empty(self, node: Node) -> None:
        """Let a node go if it is a root without children and locks."""
        if node.parent is None and not node.children and not node.locks:
            if node in self._forgotten:
                del self._forgotten[node]
            else:
                del self._named[node.key.decode()]

    def walk(self, namespace: str | None) -> Iterator[Node]:
        """Yield all nodes, or those of one namespace, parents before children, without the roots."""
        if namespace is None:
            stack = list(self)
        else:
            stack = [self._named[namespace]] if namespace in self._named else []
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def check(self, width: int) -> None:
        """Assert what must hold of every node, given the bytes of a node's key."""
        for root in self._forgotten:
            assert root.children or root.locks, "a forgotten root is kept though nothing needs it"
        for node in [*self, *self.walk(None)]:
            node.check(width)
