"""How pages that a store has on disk come back into the prefix tree."""

from collections.abc import Iterable

from rekindle.page import StoredPage, digest_below
from rekindle.scheduler.cache.ledger import Ledger
from rekindle.scheduler.cache.nodes import Node, digest_of
from rekindle.scheduler.cache.records import Records
from rekindle.scheduler.cache.roots import Roots


class Restorer:
    """Adds nodes that have a copy on disk alone, and gives records to nodes that have none.

    Args:
        roots, ledger, archive: the tree's.
        width: bytes of a node's key.
    """

    def __init__(self, roots: Roots, ledger: Ledger, records: Records, width: int):
        self._roots = roots
        self._ledger = ledger
        self._records = records
        self._width = width

    def restore(self, pages: Iterable[StoredPage]) -> list[int]:
        """See `PrefixTree.restore`."""
        known: dict[str, dict[str, Node]] = {}
        refused = []
        for page in pages:
            if page.namespace not in known:
                known[page.namespace] = self._by_digest(page.namespace)
            there = known[page.namespace]
            node = self._taken(there.get(page.parent), page)
            if node is None:
                refused.append(page.record)
            else:
                there[page.digest] = node
        for namespace in known:
            self._roots.drop_if_empty(self._roots.make(namespace))
        return refused

    def _by_digest(self, namespace: str) -> dict[str, Node]:
        nodes = [self._roots.make(namespace), *self._roots.walk(namespace)]
        return {digest_of(node).hex(): node for node in nodes}

    def _taken(self, parent: Node | None, page: StoredPage) -> Node | None:
        """The node that has the page's record now; None if the record was not taken."""
        if parent is None or len(page.key) != self._width:
            return None
        if page.digest != digest_below(digest_of(parent), page.key).hex():
            return None
        node = parent.children.get(page.key)
        if node is None:
            node = parent.children[page.key] = Node(page.key, parent)
            self._ledger.nodes += 1
        elif node.disk is not None:
            return node if node.disk == page.record else None
        self._records.change(node, page.record)
        return node
