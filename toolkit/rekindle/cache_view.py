"""What the prefix cache holds, as its user sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rekindle.prefix_nodes import Node
from rekindle.prefix_tree import PrefixTree

SHOWN = 5
"""How many paths are described."""


@dataclass(frozen=True, slots=True, repr=False)
class CachedPath:
    """A cached prefix, from its first token to a page that none continues.

    Attributes:
        tokens: its token ids.
        text: its text; empty for a model without a tokenizer.
        hits: how many requests found its most used page.
        device_pages, host_pages, disk_pages: pages of it by the warmest tier that each is in.
        held_pages: pages of it that requests or prefix handles hold.
    """

    tokens: tuple[int, ...]
    text: str
    hits: int
    device_pages: int
    host_pages: int
    disk_pages: int
    held_pages: int

    def __repr__(self) -> str:
        pages = _counted(self.device_pages + self.host_pages + self.disk_pages, "page")
        held = f", {self.held_pages} held" if self.held_pages else ""
        return f"<{_counted(self.hits, 'hit')}, {pages}{held}: {self._ends()}>"

    def _ends(self) -> str:
        """Its beginning, which it may share with others, and its end."""
        if not self.text:
            return f"token ids {list(self.tokens[:4])} … {list(self.tokens[-4:])}"
        return repr(self.text if len(self.text) <= 64 else f"{self.text[:30]} … {self.text[-30:]}")


@dataclass(frozen=True, slots=True)
class CacheView:
    """The prefix cache, from `session.cache`.

    Attributes:
        page_size: tokens in a page.
        nodes: cached pages, in any tier.
        device_pages, host_pages, disk_pages: pages in each tier; some are in several.
        device_bytes, host_bytes, disk_bytes: what they take; on disk, before compression.
        hottest: the paths that were found most often.
    """

    page_size: int
    nodes: int
    device_pages: int
    host_pages: int
    disk_pages: int
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    hottest: tuple[CachedPath, ...]

    def __repr__(self) -> str:
        lines = [
            f"<rekindle prefix cache: {_counted(self.nodes, 'page')} of {self.page_size} tokens; "
            f"{self.device_pages} on the device ({_megabytes(self.device_bytes)}), "
            f"{self.host_pages} in host memory ({_megabytes(self.host_bytes)}), "
            f"{self.disk_pages} on disk ({_megabytes(self.disk_bytes)})>"
        ]
        lines += [f"  {path!r}" for path in self.hottest]
        return "\n".join(lines)


def view(tree: PrefixTree, page_bytes: int, text_of: Callable[[Sequence[int]], str]) -> CacheView:
    """Describe a tree.

    Args:
        page_bytes: of one page over all layers.
        text_of: tokens to text.
    """
    ends = [node for node in tree.walk() if not node.children]
    ends.sort(key=lambda node: (-_hottest(tree.path(node)), -node.last_used))
    return CacheView(
        page_size=tree.page_size,
        nodes=tree.nodes,
        device_pages=tree.device_pages,
        host_pages=tree.host_pages,
        disk_pages=tree.disk_pages,
        device_bytes=tree.device_pages * page_bytes,
        host_bytes=tree.host_pages * page_bytes,
        disk_bytes=tree.disk_pages * page_bytes,
        hottest=tuple(_described(tree, node, text_of) for node in ends[:SHOWN]),
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _hottest(path: Sequence[Node]) -> int:
    return max(node.hits for node in path)


def _described(tree: PrefixTree, end: Node, text_of: Callable[[Sequence[int]], str]) -> CachedPath:
    path = tree.path(end)
    tokens = tuple(token for node in path for token in tree.tokens_of(node))
    return CachedPath(
        tokens=tokens,
        text=text_of(tokens),
        hits=_hottest(path),
        device_pages=sum(node.page is not None for node in path),
        host_pages=sum(node.page is None and node.host is not None for node in path),
        disk_pages=sum(node.page is None and node.host is None for node in path),
        held_pages=sum(node.locks > 0 for node in path),
    )
