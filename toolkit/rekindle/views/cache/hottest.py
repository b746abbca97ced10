"""Best-first search for the hottest paths and runs of the prefix tree."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from rekindle.core.scheduler.cache.nodes import FORGOTTEN, Node
from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.views.cache.drawing import Run, Tier
from rekindle.views.cache.labels import after_ellipsis, label_start, shared_lengths

T = TypeVar("T")

MAX_PATHS = 5
"""The maximum number of paths in a view."""
MAX_RUNS = 40
"""The maximum number of runs in a picture, for legibility."""
RUN_TOKENS = 48
"""The maximum number of tokens of a run's text, from the first difference from its siblings."""


class _Queue(Generic[T]):
    """A priority queue by number of hits, then by most recent use."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, T]] = []
        self._order = count()  # the tie breaker, so that items are never compared

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, hits: int, last_used: int, item: T) -> None:
        heapq.heappush(self._heap, (-hits, -last_used, next(self._order), item))

    def pop(self) -> tuple[int, T]:
        """Return the hits of the hottest item, and the item."""
        hits, _, _, item = heapq.heappop(self._heap)
        return -hits, item


def hottest_ends(trees: Sequence[PrefixTree]) -> list[tuple[int, Node]]:
    """Return the last nodes of the `MAX_PATHS` hottest paths, each with the number of its salt.

    Ties are broken by most recent use. Hits and last use never increase from parent to child, so a best-first search
    finds the ends in order.
    """
    queue: _Queue[tuple[int, Node]] = _Queue()
    for salt, root in _with_salts(_roots(trees)):
        for node in root.branches:
            queue.push(node.hits, node.last_used, (salt, node))
    ends: list[tuple[int, Node]] = []
    while queue and len(ends) < MAX_PATHS:
        hits, (salt, node) = queue.pop()
        if not node.branches:
            ends.append((salt, node))
        for child in node.branches:
            queue.push(hits, child.last_used, (salt, child))
    return ends


@dataclass(slots=True)
class _Branch:
    """The nodes of a run, and the number of branches below it in the picture."""

    parent: int
    salt: int
    nodes: list[Node]
    visible_children: int = 0


def hottest_runs(trees: Sequence[PrefixTree], text_of: Callable[[Sequence[int]], str]) -> tuple[tuple[Run, ...], int]:
    """Return the `MAX_RUNS` runs with the most hits; ties are broken by most recent use.

    Hits never increase from parent to child, so a best-first search finds the hottest runs.

    Args:
        text_of: a function from tokens to text.

    Returns:
        The runs, parents before children, and the number of omitted runs at the roots.
    """
    branches: list[_Branch] = []
    queue: _Queue[_Branch] = _Queue()
    for salt, root in _with_salts(_roots(trees)):
        _push_branches(queue, root, -1, salt)
    while queue and len(branches) < MAX_RUNS:
        _, branch = queue.pop()
        _extend(branch.nodes)
        if branch.parent >= 0:
            branches[branch.parent].visible_children += 1
        _push_branches(queue, branch.nodes[-1], len(branches), branch.salt)
        branches.append(branch)
    beginnings = sum(len(root.branches) for root in _roots(trees))
    visible = len([branch for branch in branches if branch.parent < 0])
    shared = _shared_tokens(trees[0], branches)
    runs = (_run(trees[0], branch, text_of, common) for branch, common in zip(branches, shared, strict=True))
    return tuple(runs), beginnings - visible


def _roots(trees: Sequence[PrefixTree]) -> list[Node]:
    return [root for tree in trees for root in tree.roots]


def _with_salts(roots: Iterable[Node]) -> list[tuple[int, Node]]:
    """Return each root with a number in place of its salt, as in `Run`, because a salt may be a secret."""
    salts: dict[bytes, int] = defaultdict(count(1).__next__, {b"": 0})
    return [(-1 if root.last_used == FORGOTTEN else salts[root.key], root) for root in roots]


def _push_branches(queue: _Queue[_Branch], above: Node, parent: int, salt: int) -> None:
    """Queue the hottest branches below a node, at most `MAX_RUNS`."""
    for node in heapq.nlargest(MAX_RUNS, above.branches, key=lambda node: (node.hits, node.last_used)):
        queue.push(node.hits, node.last_used, _Branch(parent, salt, [node]))


def _extend(nodes: list[Node]) -> None:
    """Append the following nodes up to a branch, or to a node with other hits, locks or tiers."""
    like = nodes[0].hits, nodes[0].locks, _tiers(nodes[0])
    while len(nodes[-1].branches) == 1:
        (child,) = nodes[-1].branches
        if (child.hits, child.locks, _tiers(child)) != like:
            return
        nodes.append(child)


def _tiers(node: Node) -> tuple[Tier, ...]:
    tiers: list[tuple[Tier, int | None]] = [("device", node.page), ("host", node.host), ("disk", node.disk)]
    return tuple(tier for tier, location in tiers if location is not None)


def _shared_tokens(tree: PrefixTree, branches: Sequence[_Branch]) -> list[int]:
    """Return for each branch the number of leading tokens in common with its siblings."""
    siblings = defaultdict(list)
    for index, branch in enumerate(branches):
        siblings[branch.parent, branch.salt].append(index)
    shared = [0] * len(branches)
    for indices in siblings.values():
        lengths = shared_lengths([tree.tokens_of(branches[index].nodes[0]) for index in indices])
        for index, common in zip(indices, lengths, strict=True):
            shared[index] = common
    return shared


def _run(tree: PrefixTree, branch: _Branch, text_of: Callable[[Sequence[int]], str], shared: int) -> Run:
    first, last, pages = branch.nodes[0], branch.nodes[-1], len(branch.nodes)
    head = branch.nodes[: -(-(shared + RUN_TOKENS) // tree.page_size)]
    tokens = [token for node in head for token in tree.tokens_of(node)][: shared + RUN_TOKENS]
    more = " …" if pages * tree.page_size > len(tokens) else ""
    text = f"{_label(tokens, text_of, shared)}{more}"
    hidden = len(last.branches) - branch.visible_children
    states = sum(node.state is not None for node in branch.nodes)
    return Run(branch.parent, branch.salt, text, pages, _tiers(first), first.hits, first.locks, hidden, states)


def _label(tokens: Sequence[int], text_of: Callable[[Sequence[int]], str], shared: int) -> str:
    """Return the text of a run from its first difference from the siblings, after `shared` common tokens."""
    text = text_of(tokens)
    if not text:
        return f"token ids {'… ' if shared else ''}{' '.join(map(str, tokens[shared : shared + 16]))}"
    start = label_start(text, min(len(text), len(text_of(tokens[:shared])))) if shared else 0
    return after_ellipsis(text[start:]) if start else text
