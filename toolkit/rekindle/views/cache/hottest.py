"""The hottest part of the prefix tree, found without a walk over the rest, and copied so that the tree may change."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from rekindle.core.scheduler.cache.nodes import FORGOTTEN, Node
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.views.cache.drawing import Run, Tier
from rekindle.views.cache.labels import after_a_gap, alike, label_start

T = TypeVar("T")

MAX_PATHS = 5
"""The most paths that are described."""
MAX_RUNS = 40
"""The most runs that are drawn: about as many as one can read."""
RUN_TOKENS = 48
"""How many tokens of a run are shown as text."""


class _Queue(Generic[T]):
    """Things that wait: first the one that was found most often, among equals the one that was used last."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, T]] = []
        self._order = count()  # things themselves are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, hits: int, last_used: int, thing: T) -> None:
        heapq.heappush(self._heap, (-hits, -last_used, next(self._order), thing))

    def pop(self) -> tuple[int, T]:
        """Return the hits of the hottest, and the thing itself."""
        hits, _, _, thing = heapq.heappop(self._heap)
        return -hits, thing


def hottest_ends(trees: Sequence[PrefixTree]) -> list[tuple[int, Node]]:
    """Return the ends of the `MAX_PATHS` hottest paths, each after the number that stands for its salt.

    Among equals, they are those that were used last.

    No node has more hits than the first of its path, and none was used after its parent. Therefore the search that
    looks at the hottest node first finds the ends in order.
    """
    waiting: _Queue[tuple[int, Node]] = _Queue()
    for salt, root in _numbered(_roots(trees)):
        for node in root.children.values():
            waiting.push(node.hits, node.last_used, (salt, node))
    ends: list[tuple[int, Node]] = []
    while waiting and len(ends) < MAX_PATHS:
        hits, (salt, node) = waiting.pop()
        if not node.children:
            ends.append((salt, node))
        for child in node.children.values():
            waiting.push(hits, child.last_used, (salt, child))
    return ends


@dataclass(slots=True)
class _Found:
    """A run of the tree, and how many of the branches below it were found too."""

    parent: int
    salt: int
    nodes: list[Node]
    drawn: int = 0


def hottest_runs(trees: Sequence[PrefixTree], text_of: Callable[[Sequence[int]], str]) -> tuple[tuple[Run, ...], int]:
    """Return at most `MAX_RUNS` runs, those with the most hits; among equals, those that were used last.

    A parent has at least the hits of its children. Therefore the search that looks at the hottest branch first finds
    the hottest runs of all.

    Args:
        text_of: turns tokens into text.

    Returns:
        The runs, parents before children, and how many beginnings of prefixes are not among them.
    """
    found: list[_Found] = []
    waiting: _Queue[_Found] = _Queue()
    for salt, root in _numbered(_roots(trees)):
        _push_branches(waiting, root, -1, salt)
    while waiting and len(found) < MAX_RUNS:
        _, run = waiting.pop()
        _extend(run.nodes)
        if run.parent >= 0:
            found[run.parent].drawn += 1
        _push_branches(waiting, run.nodes[-1], len(found), run.salt)
        found.append(run)
    beginnings = sum(len(root.children) for root in _roots(trees))
    drawn = len([run for run in found if run.parent < 0])
    shared = _shared(trees[0], found)
    runs = (_frozen(trees[0], run, text_of, alike) for run, alike in zip(found, shared, strict=True))
    return tuple(runs), beginnings - drawn


def _roots(trees: Sequence[PrefixTree]) -> list[Node]:
    return [root for tree in trees for root in tree.roots]


def _numbered(roots: Iterable[Node]) -> list[tuple[int, Node]]:
    """Return each root after the number that stands for its salt, because a salt may be a secret."""
    salts: dict[bytes, int] = defaultdict(count(1).__next__, {b"": 0})
    return [(-1 if root.last_used == FORGOTTEN else salts[root.key], root) for root in roots]


def _push_branches(waiting: _Queue[_Found], above: Node, parent: int, salt: int) -> None:
    """Let the hottest branches below a node wait; more than are drawn need not."""
    for node in heapq.nlargest(MAX_RUNS, above.children.values(), key=lambda node: (node.hits, node.last_used)):
        waiting.push(node.hits, node.last_used, _Found(parent, salt, [node]))


def _extend(nodes: list[Node]) -> None:
    """Append the nodes that follow without a branch and are like the first."""
    like = nodes[0].hits, nodes[0].locks, _tiers(nodes[0])
    while len(nodes[-1].children) == 1:
        (child,) = nodes[-1].children.values()
        if (child.hits, child.locks, _tiers(child)) != like:
            return
        nodes.append(child)


def _tiers(node: Node) -> tuple[Tier, ...]:
    tiers: list[tuple[Tier, int | None]] = [("device", node.page), ("host", node.host), ("disk", node.disk)]
    return tuple(tier for tier, held in tiers if held is not None)


def _shared(tree: PrefixTree, found: Sequence[_Found]) -> list[int]:
    """Return for each run how many of its first tokens one beside it, below the same parent, has too."""
    beside = defaultdict(list)
    for place, run in enumerate(found):
        beside[run.parent, run.salt].append(place)
    shared = [0] * len(found)
    for places in beside.values():
        for place, common in zip(places, alike([tree.tokens_of(found[at].nodes[0]) for at in places]), strict=True):
            shared[place] = common
    return shared


def _frozen(tree: PrefixTree, run: _Found, text_of: Callable[[Sequence[int]], str], shared: int) -> Run:
    first, last, pages = run.nodes[0], run.nodes[-1], len(run.nodes)
    shown = run.nodes[: -(-(shared + RUN_TOKENS) // tree.page_size)]
    tokens = [token for node in shown for token in tree.tokens_of(node)][: shared + RUN_TOKENS]
    more = " …" if pages * tree.page_size > len(tokens) else ""
    text = f"{_label(tokens, text_of, shared)}{more}"
    hidden = len(last.children) - run.drawn
    return Run(run.parent, run.salt, text, pages, _tiers(first), first.hits, first.locks, hidden)


def _label(tokens: Sequence[int], text_of: Callable[[Sequence[int]], str], shared: int) -> str:
    """Return the text of a run from the word in which it differs from those beside it, which share so many tokens."""
    text = text_of(tokens)
    if not text:
        return f"token ids {'… ' if shared else ''}{' '.join(map(str, tokens[shared : shared + 16]))}"
    start = label_start(text, min(len(text), len(text_of(tokens[:shared])))) if shared else 0
    return after_a_gap(text[start:]) if start else text
