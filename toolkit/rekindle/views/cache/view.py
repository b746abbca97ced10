"""Snapshots of the prefix cache for users."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rekindle import markup
from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.core.words import quantity, size_text
from rekindle.views.cache.drawing import KIND, Run, draw, salt_label
from rekindle.views.cache.hottest import MAX_PATHS, hottest_ends, hottest_runs
from rekindle.views.cache.labels import label, shared_lengths
from rekindle.views.drawing import Drawing, stack


@dataclass(frozen=True, slots=True, repr=False)
class CachedPath:
    """A cached prefix, from its first token to a leaf of the tree.

    Attributes:
        tokens: the token ids of the prefix.
        text: the text of the prefix; empty for a model without a tokenizer.
        hits: the number of requests with a cache hit on the first page.
        device_pages, host_pages, disk_pages: the number of pages in each tier; a page counts for its fastest tier.
        held_pages: the number of pages locked by requests or prefix handles.
        salt: 0 without a cache_salt, otherwise a number for each salt; -1 for pages computed with replaced weights.
        label: a short label to distinguish the path from the others, of its text or its token ids.
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

    @property
    def pages(self) -> int:
        """The number of pages."""
        return self.device_pages + self.host_pages + self.disk_pages

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The label, the hits, the pages and the held pages, as text for a table."""
        holds = f"{self.held_pages:,}" if self.held_pages else ""
        return f"{self.label}{salt_label(self.salt)}", f"{self.hits:,}", f"{self.pages:,}", holds

    def __repr__(self) -> str:
        pages = quantity(self.pages, "page")
        holds = f", {self.held_pages} held" if self.held_pages else ""
        return f"<{quantity(self.hits, 'hit')}, {pages}{holds}{salt_label(self.salt)}: {self.label}>"


@dataclass(frozen=True, slots=True)
class CacheView:
    """A snapshot of the prefix cache, from `session.cache`.

    Attributes:
        page_size: the number of tokens in a page.
        nodes: the number of cached pages, in any tier.
        device_pages, host_pages, disk_pages: the number of pages in each tier; a page can be in several tiers. Groups
            of devices share the disk, so `disk_pages` is the maximum over groups.
        device_bytes, host_bytes, disk_bytes: the size of the pages and states in each tier; on disk, before
            compression.
        hottest: the paths with the most hits.
        runs: the hottest part of the tree, for `draw`.
        more_beginnings: the number of runs at the roots omitted from `runs`.
        lanes: the caches of the lanes, if there are several; empty in the cache of a lane.
        state_bytes: the size of a state, for a model whose layers keep one; 0 for others.
        states: the number of cached states, in any tier; none is on the device.
        host_states, disk_states: the number of states in these tiers, as for pages.
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
    state_bytes: int = 0
    states: int = 0
    host_states: int = 0
    disk_states: int = 0

    def __repr__(self) -> str:
        tiers = ", ".join(
            f"{_counts(pages, states)} {where} ({size_text(size)})" for _, where, pages, states, size in self._tiers
        )
        return "\n".join([f"<rekindle prefix cache: {self._size}; {tiers}>", *(f"  {path!r}" for path in self.hottest)])

    @property
    def _size(self) -> str:
        pages = f"{quantity(self.nodes, 'page')} of {self.page_size} tokens"
        size = f" of {size_text(self.state_bytes)}"
        return f"{pages}, {quantity(self.states, 'state')}{size}" if self.state_bytes else pages

    @property
    def _tiers(self) -> tuple[tuple[str, str, int, int, int], ...]:
        """The name, the location, the numbers of pages and of states, and the bytes of each tier."""
        return (
            ("device", "on the device", self.device_pages, 0, self.device_bytes),
            ("host memory", "in host memory", self.host_pages, self.host_states, self.host_bytes),
            ("disk", "on disk", self.disk_pages, self.disk_states, self.disk_bytes),
        )

    def with_texts(self, text_of: Callable[[Sequence[int]], str]) -> "CacheView":
        """Return a copy with texts of the hottest paths, decoded by `text_of`."""
        texts = [text_of(path.tokens) for path in self.hottest]
        labels = map(label, texts, shared_lengths(texts))
        if not all(texts):
            tokens = [path.tokens for path in self.hottest]
            labels = map(label, tokens, shared_lengths(tokens))
        paths = zip(self.hottest, texts, labels, strict=True)
        hottest = tuple(replace(path, text=text, label=label) for path, text, label in paths)
        return replace(self, hottest=hottest, lanes=tuple(lane.with_texts(text_of) for lane in self.lanes))

    def draw(self) -> Drawing:
        """Draw the hottest part of the tree, with texts, pages, tiers, hits and locks."""
        if self.lanes:
            drawings = [(f"lane {number}", lane.draw()) for number, lane in enumerate(self.lanes)]
            return stack(KIND, f"{self._size} in {quantity(len(self.lanes), 'lane')}", drawings)
        title = self._size if self.runs else f"{self._size}; only whole pages are cached"
        return draw(self.runs, self.more_beginnings, title)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        has_states = self.state_bytes > 0
        rows = [
            (name, f"{pages:,}", *([f"{states:,}"] if has_states else []), size_text(size))
            for name, _, pages, states, size in self._tiers
        ]
        head = ("tier", "pages", *(["states"] if has_states else []), "size")
        hottest = markup.table((path.row for path in self.hottest), ("found most often", "hits", "pages", "held"))
        card = markup.card(
            KIND,
            self._size,
            markup.table(rows, head),
            hottest if self.hottest else "",
            markup.facts({"its tree": "session.cache.draw()"}) if self.nodes else "",
        )
        return markup.bundle(repr(self), card)


def _counts(pages: int, states: int) -> str:
    return f"{quantity(pages, 'page')} and {quantity(states, 'state')}" if states else f"{pages}"


def view(
    trees: Sequence[PrefixTree], page_bytes: int, state_bytes: int, text_of: Callable[[Sequence[int]], str]
) -> CacheView:
    """Return a snapshot of a cache without the texts of its paths: decoding long texts would block the engine.

    Args:
        trees: the prefix tree of each group of devices.
        page_bytes: the size of one page over all layers, in bytes.
        state_bytes: the size of one state over all layers, in bytes; 0 for a model without states.
        text_of: a function from the first tokens of a run to text.
    """
    runs, more_beginnings = hottest_runs(trees, text_of)
    device_pages, host_pages, disk_pages = (
        sum(tree.ledger.device_pages for tree in trees),
        sum(tree.ledger.host_pages for tree in trees),
        max(tree.records.pages for tree in trees),
    )
    host_states, disk_states = (
        sum(tree.ledger.host_states for tree in trees),
        max(tree.records.states for tree in trees),
    )
    return CacheView(
        page_size=trees[0].page_size,
        nodes=sum(tree.ledger.nodes for tree in trees),
        device_pages=device_pages,
        host_pages=host_pages,
        disk_pages=disk_pages,
        device_bytes=device_pages * page_bytes,
        host_bytes=host_pages * page_bytes + host_states * state_bytes,
        disk_bytes=disk_pages * page_bytes + disk_states * state_bytes,
        hottest=tuple(_cached_path(trees[0], salt, end) for salt, end in hottest_ends(trees)),
        runs=runs,
        more_beginnings=more_beginnings,
        state_bytes=state_bytes,
        states=sum(tree.ledger.states for tree in trees),
        host_states=host_states,
        disk_states=disk_states,
    )


def merge_lanes(lanes: Sequence[CacheView]) -> CacheView:
    """Combine the caches of all lanes into one; lanes share the disk."""
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
        state_bytes=lanes[0].state_bytes,
        states=sum(lane.states for lane in lanes),
        host_states=sum(lane.host_states for lane in lanes),
        disk_states=disk.disk_states,
    )


def _cached_path(tree: PrefixTree, salt: int, end: Node) -> CachedPath:
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
