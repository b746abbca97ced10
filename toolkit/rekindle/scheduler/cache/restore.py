"""How pages that a store has on disk come back into the prefix tree."""

from collections.abc import Iterable

from rekindle.page import StoredPage, digest_below
from rekindle.scheduler.cache.ledger import Ledger
from rekindle.scheduler.cache.nodes import Node, digest_of
from rekindle.scheduler.cache.records import Records
from rekindle.scheduler.cache.roots import Roots


def restore(pages: Iterable[StoredPage], width: int, roots: Roots, ledger: Ledger, records: Records) -> None:
    """Add nodes that have a copy on disk alone, and give records to nodes that have none.

    Args:
        pages: parents before children.
        width: bytes of a node's key. Pages of another size are passed over, as are those that do not fit their parent.
        roots, ledger, records: the tree's.
    """
    known: dict[str, dict[str, Node]] = {}
    for page in pages:
        if page.namespace not in known:
            known[page.namespace] = _by_digest(roots, page.namespace)
        there = known[page.namespace]
        parent = there.get(page.parent)
        if parent is None or len(page.key) != width:
            continue
        if page.digest != digest_below(digest_of(parent), page.key).hex():
            continue
        node = parent.children.get(page.key)
        if node is None:
            node = parent.children[page.key] = there[page.digest] = Node(page.key, parent)
            ledger.add(node)
        if node.disk is None:
            records.change(node, page.record)
    for namespace in known:
        roots.drop_if_empty(roots.make(namespace))


def _by_digest(roots: Roots, namespace: str) -> dict[str, Node]:
    return {digest_of(node).hex(): node for node in (roots.make(namespace), *roots.walk(namespace))}
