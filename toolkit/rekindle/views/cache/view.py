"""What the prefix cache holds, as its user sees it."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from rekindle import markup
from rekindle.markup import counted
from rekindle.scheduler.cache.nodes import Node
from rekindle.scheduler.cache.tree import PrefixTree
from rekindle.views.cache.drawing import LETTERS, Run, draw
from rekindle.views.cache.runs import hottest_runs
from rekindle.views.drawing import Drawing

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
        pages = counted(self.device_pages + self.host_pages + self.disk_pages, "page")
        held = f", {self.held_pages} held" if self.held_pages else ""
        return f"<{counted(self.hits, 'hit')}, {pages}{held}: {self._ends()}>"

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
        runs: the hottest part of the tree, for `draw`.
        more_beginnings: how many beginnings of prefixes are not in `runs`.
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
    runs: tuple[Run, ...] = field(repr=False)
    more_beginnings: int = field(repr=False)

    def __repr__(self) -> str:
        lines = [
            f"<rekindle prefix cache: {counted(self.nodes, 'page')} of {self.page_size} tokens; "
            f"{self.device_pages} on the device ({markup.size_text(self.device_bytes)}), "
            f"{self.host_pages} in host memory ({markup.size_text(self.host_bytes)}), "
            f"{self.disk_pages} on disk ({markup.size_text(self.disk_bytes)})>"
        ]
        lines += [f"  {path!r}" for path in self.hottest]
        return "\n".join(lines)

    def draw(self) -> Drawing:
        """The tree, as far as it fits: its hottest paths, with their texts, pages, tiers, hits and locks."""
        title = f"{counted(self.nodes, 'page')} of {self.page_size} tokens"
        return draw(self.runs, self.more_beginnings, title if self.runs else f"{title}; only whole pages are cached")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        tiers = (
            (f"{LETTERS['device']} device", self.device_pages, self.device_bytes),
            (f"{LETTERS['host']} host memory", self.host_pages, self.host_bytes),
            (f"{LETTERS['disk']} disk", self.disk_pages, self.disk_bytes),
        )
        rows = [(name, f"{pages:,}", markup.size_text(size)) for name, pages, size in tiers]
        hottest = "<div>found most often:</div>" + markup.listed(map(repr, self.hottest)) if self.hottest else ""
        shown = markup.card(
            "rekindle prefix cache",
            f"{counted(self.nodes, 'page')} of {self.page_size} tokens",
            markup.table(rows, ("tier", "pages", "size")),
            hottest,
            markup.facts({"its tree": "session.cache.draw()"}) if self.runs else "",
        )
        return markup.bundle(repr(self), shown)


def view(tree: PrefixTree, page_bytes: int, text_of: Callable[[Sequence[int]], str]) -> CacheView:
    """Describe a tree.

    Args:
        page_bytes: of one page over all layers.
        text_of: tokens to text.
    """
    runs, more_beginnings = hottest_runs(tree, text_of)
    return CacheView(
        page_size=tree.page_size,
        nodes=tree.nodes,
        device_pages=tree.device_pages,
        host_pages=tree.host_pages,
        disk_pages=tree.disk_pages,
        device_bytes=tree.device_pages * page_bytes,
        host_bytes=tree.host_pages * page_bytes,
        disk_bytes=tree.disk_pages * page_bytes,
        hottest=tuple(_described(tree, end, text_of) for end in _hottest_ends(tree)),
        runs=runs,
        more_beginnings=more_beginnings,
    )


def _hottest_ends(tree: PrefixTree) -> list[Node]:
    """The ends of the `SHOWN` hottest paths, of equal ones the last used.

    No node was found more often than the first of its path, nor used later than its parent: looking at the hottest
    first, the last used first, finds the ends in order without a walk over the others.
    """
    order = count()  # two nodes are never compared
    waiting = [
        (-node.hits, -node.last_used, next(order), node) for root in tree.roots for node in root.children.values()
    ]
    heapq.heapify(waiting)
    ends: list[Node] = []
    while waiting and len(ends) < SHOWN:
        hits, _, _, node = heapq.heappop(waiting)
        if not node.children:
            ends.append(node)
        for child in node.children.values():
            heapq.heappush(waiting, (hits, -child.last_used, next(order), child))
    return ends


def _described(tree: PrefixTree, end: Node, text_of: Callable[[Sequence[int]], str]) -> CachedPath:
    path = tree.path(end)
    tokens = tuple(token for node in path for token in tree.tokens_of(node))
    return CachedPath(
        tokens=tokens,
        text=text_of(tokens),
        hits=path[0].hits,
        device_pages=sum(node.page is not None for node in path),
        host_pages=sum(node.page is None and node.host is not None for node in path),
        disk_pages=sum(node.page is None and node.host is None for node in path),
        held_pages=sum(node.locks > 0 for node in path),
    )
