"""A prefix tree over texts with pages of two letters, for readable tests."""

from rekindle.core.page import StoredPage
from rekindle.core.scheduler.cache.nodes import Evicted, Node
from rekindle.core.scheduler.cache.tree import PrefixTree


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class Letters(PrefixTree):
    """A tree over the letters of texts. Device pages count from 0, host entries from 100, records from 200."""

    def __init__(self) -> None:
        super().__init__(page_size=2)
        self.page_count = 0

    def nodes_of(self, text: str, namespace: str = "") -> list[Node]:
        return self.match(namespace, ids(text))

    def tip(self, text: str) -> Node:
        return self.nodes_of(text)[-1]

    def hold(self, text: str, namespace: str = "") -> Node:
        """Lock the cached pages of a text and publish the rest, as a request does; return the locked tip."""
        nodes = self.nodes_of(text, namespace)
        tip = nodes[-1] if nodes else self.root(namespace)
        self.lock(tip)
        rest = text[2 * len(nodes) :]
        pages = list(range(self.page_count, self.page_count + len(rest) // 2))
        self.page_count += len(pages)
        return self.publish(tip, ids(rest), pages)[0]

    def use(self, text: str, namespace: str = "") -> Node:
        tip = self.hold(text, namespace)
        self.unlock(tip)
        return tip

    def offload(self, count: int) -> list[int]:
        """Offload up to `count` pages, page 7 to entry 107; return the pages in order."""
        pages = []
        for node in self.next_to_offload(count):
            assert node.page is not None
            pages.append(node.page)
            self.add_host_copy(node, 100 + node.page)
        return pages

    def archive_all(self) -> list[int]:
        """Archive everything, page 7 or entry 107 as record 207; return the records in the order of choice."""
        nodes = self.records.next_to_write(1000)
        records = [200 + node.page if node.page is not None else 100 + (node.host or 0) for node in nodes]
        for node, record in zip(nodes, records, strict=True):
            self.records.finish_write(node, record)
        return records

    def cool(self, text: str, namespace: str = "") -> Node:
        """Publish a text into an empty tree and leave its pages only in the host tier; return its tip."""
        tip = self.use(text, namespace)
        self.offload(1000)
        self.evict(1000)
        return tip

    def freeze(self, text: str, namespace: str = "") -> Node:
        """Publish a text into an empty tree and leave its pages only on disk; return its tip."""
        tip = self.use(text, namespace)
        self.archive_all()
        self.evict(1000)
        return tip

    def tiers(self, text: str) -> list[tuple[int | None, int | None, int | None]]:
        return [(node.page, node.host, node.disk) for node in self.nodes_of(text)]

    def stored(self) -> list[StoredPage]:
        """Return all pages on disk, as a store would report them."""
        pages = []
        for node in self.walk():
            if node.disk is not None and node.parent is not None:
                namespace = node.upward()[-1].key.decode()
                digests = self.digest(node), self.digest(node.parent)
                pages.append(StoredPage(node.disk, *digests, namespace, node.key))
        return pages

    def on_disk(self) -> list[int]:
        return sorted(node.disk for node in self.walk() if node.disk is not None)

    def lose(self, record: int) -> Evicted:
        """Drop a record's copy on disk."""
        return self.drop_disk(next(node for node in self.walk() if node.disk == record))

    def lose_all(self) -> list[StoredPage]:
        """Forget and return all pages on disk."""
        pages = self.stored()
        for page in pages:
            if page.record in self.on_disk():
                self.lose(page.record)
        return pages
