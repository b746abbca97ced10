"""The contents of the prefix cache, as a user sees them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rekindle.core import markup
from rekindle.core.markup import quantity
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.views.cache.drawing import Run, draw, salted
from rekindle.views.cache.hottest import MAX_PATHS, hottest_ends, hottest_runs
from rekindle.views.cache.labels import alike, label
from rekindle.views.drawing import Drawing, stacked


@dataclass(frozen=True, slots=True, repr=False)
class CachedPath:
    """A cached prefix, from its first token to a page that nothing follows.

    Attributes:
        tokens: its token ids.
        text: its text; empty if the model has no tokenizer.
        hits: how many requests found its most used page.
        device_pages, host_pages, disk_pages: how many of its pages are in each tier. A page counts for its fastest.
        held_pages: how many of its pages are held by requests or prefix handles.
        salt: 0 without a cache_salt, otherwise a number for each salt; -1 if weights computed it that were replaced.
        label: what tells its text from those of the other paths, in a few words; of its token ids if it has no text.
    """

    tokens: tuple[int, ...]
    text: str
    hits: int
    device_pages: int
    host_pages: int
    disk_pages: int
    held_pages: int
    salt: int = 0
    label: str = ""

    def __repr__(self) -> str:
        pages = quantity(self.device_pages + self.host_pages + self.disk_pages, "page")
        held = f", {self.held_pages} held" if self.held_pages else ""
        return f"<{quantity(self.hits, 'hit')}, {pages}{held}{salted(self.salt)}: {self.label}>"


@dataclass(frozen=True, slots=True)
class CacheView:
    """The prefix cache, from `session.cache`.

    Attributes:
        page_size: tokens in a page.
        nodes: how many pages are cached, in any tier.
        device_pages, host_pages, disk_pages: how many pages are in each tier; some are in several. Groups of devices
            share the disk: the pages of the one that knows of most are counted.
        device_bytes, host_bytes, disk_bytes: the bytes that they take; on disk, before compression.
        hottest: the paths that were found most often.
        runs: the hottest part of the tree, for `draw`.
        more_beginnings: how many beginnings of prefixes are not in `runs`.
        lanes: the cache of each lane, if there are several; those of lanes have none.
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
    lanes: tuple["CacheView", ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        tiers = ", ".join(f"{pages} {where} ({markup.size_text(size)})" for _, where, pages, size in self._tiers)
        return "\n".join([f"<rekindle prefix cache: {self._size}; {tiers}>", *(f"  {path!r}" for path in self.hottest)])

    @property
    def _size(self) -> str:
        return f"{quantity(self.nodes, 'page')} of {self.page_size} tokens"

    @property
    def _tiers(self) -> tuple[tuple[str, str, int, int], ...]:
        """The name of each tier, where its pages are, how many they are, and their bytes."""
        return (
            ("device", "on the device", self.device_pages, self.device_bytes),
            ("host memory", "in host memory", self.host_pages, self.host_bytes),
            ("disk", "on disk", self.disk_pages, self.disk_bytes),
        )

    def with_texts(self, text_of: Callable[[Sequence[int]], str]) -> "CacheView":
        """Return the same with the texts of the hottest paths, which `text_of` makes of their tokens."""
        texts = [text_of(path.tokens) for path in self.hottest]
        labels = map(label, texts, alike(texts))
        if not all(texts):
            tokens = [path.tokens for path in self.hottest]
            labels = map(label, tokens, alike(tokens))
        told = zip(self.hottest, texts, labels, strict=True)
        hottest = tuple(replace(path, text=text, label=label) for path, text, label in told)
        return replace(self, hottest=hottest, lanes=tuple(lane.with_texts(text_of) for lane in self.lanes))

    def draw(self) -> Drawing:
        """Draw the tree as far as it fits: its hottest paths, with their texts, pages, tiers, hits and locks."""
        if self.lanes:
            named = [(f"lane {number}", lane.draw()) for number, lane in enumerate(self.lanes)]
            return stacked(f"{self._size} in {quantity(len(self.lanes), 'lane')}", named)
        title = self._size if self.runs else f"{self._size}; only whole pages are cached"
        return draw(self.runs, self.more_beginnings, title)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        rows = [(name, f"{pages:,}", markup.size_text(size)) for name, _, pages, size in self._tiers]
        hottest = "<div>found most often:</div>" + markup.bullet_list(map(repr, self.hottest)) if self.hottest else ""
        shown = markup.card(
            "rekindle prefix cache",
            self._size,
            markup.table(rows, ("tier", "pages", "size")),
            hottest,
            "<div>session.cache.draw() draws the tree of these prefixes.</div>" if self.nodes else "",
        )
        return markup.bundle(repr(self), shown)


def view(trees: Sequence[PrefixTree], page_bytes: int, text_of: Callable[[Sequence[int]], str]) -> CacheView:
    """Describe a cache, without the texts of its paths: those may be long, and the engine waits meanwhile.

    Args:
        trees: that of each group of devices.
        page_bytes: the bytes of one page over all layers.
        text_of: turns the first tokens of a run into text.
    """
    runs, more_beginnings = hottest_runs(trees, text_of)
    device_pages, host_pages, disk_pages = (
        sum(tree.device_pages for tree in trees),
        sum(tree.host_pages for tree in trees),
        max(tree.disk_pages for tree in trees),
    )
    return CacheView(
        page_size=trees[0].page_size,
        nodes=sum(tree.nodes for tree in trees),
        device_pages=device_pages,
        host_pages=host_pages,
        disk_pages=disk_pages,
        device_bytes=device_pages * page_bytes,
        host_bytes=host_pages * page_bytes,
        disk_bytes=disk_pages * page_bytes,
        hottest=tuple(_described(trees[0], salt, end) for salt, end in hottest_ends(trees)),
        runs=runs,
        more_beginnings=more_beginnings,
    )


def joined(lanes: Sequence[CacheView]) -> CacheView:
    """Describe the caches of all lanes as one; they share the disk."""
    if len(lanes) == 1:
        return lanes[0]
    paths = [path for lane in lanes for path in lane.hottest]
    disk = max(lanes, key=lambda lane: lane.disk_pages)
    return CacheView(
        page_size=lanes[0].page_size,
        nodes=sum(lane.nodes for lane in lanes),
        device_pages=sum(lane.device_pages for lane in lanes),
        host_pages=sum(lane.host_pages for lane in lanes),
        disk_pages=disk.disk_pages,
        device_bytes=sum(lane.device_bytes for lane in lanes),
        host_bytes=sum(lane.host_bytes for lane in lanes),
        disk_bytes=disk.disk_bytes,
        hottest=tuple(sorted(paths, key=lambda path: -path.hits)[:MAX_PATHS]),
        runs=(),
        more_beginnings=0,
        lanes=tuple(lanes),
    )


def _described(tree: PrefixTree, salt: int, end: Node) -> CachedPath:
    path = tree.path(end)
    return CachedPath(
        tokens=tuple(token for node in path for token in tree.tokens_of(node)),
        text="",
        hits=path[0].hits,
        device_pages=sum(node.page is not None for node in path),
        host_pages=sum(node.page is None and node.host is not None for node in path),
        disk_pages=sum(node.page is None and node.host is None for node in path),
        held_pages=sum(node.locks > 0 for node in path),
        salt=salt,
    )
