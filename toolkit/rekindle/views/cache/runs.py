"""The hottest part of the prefix tree, frozen: what can be drawn once the tree has changed."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from rekindle.scheduler.cache.nodes import FORGOTTEN, Node
from rekindle.scheduler.cache.tree import PrefixTree
from rekindle.views.cache.drawing import Run, Tier

MOST_RUNS = 40
"""As many as one can read."""
SHOWN_TOKENS = 48
"""Tokens of a run whose text is kept."""


@dataclass(slots=True)
class _Found:
    """A run of the tree, and how many of its branches are found too."""

    parent: int
    salt: int
    nodes: list[Node]
    drawn: int = 0


def hottest_runs(tree: PrefixTree, text_of: Callable[[Sequence[int]], str]) -> tuple[tuple[Run, ...], int]:
    """At most `MOST_RUNS` runs, those with the most hits, of equal ones the last used; parents before children.

    A parent has at least the hits of its children, so looking at the hottest branch first finds the hottest of all
    without a walk over the others.

    Args:
        text_of: tokens to text.

    Returns:
        The runs, and how many beginnings of prefixes are not among them.
    """
    found: list[_Found] = []
    order = count()  # two nodes are never compared
    waiting: list[tuple[int, int, int, _Found]] = []
    beginnings = 0
    for salt, root in _numbered(tree.roots):
        beginnings += len(root.children)
        _wait(waiting, order, -1, salt, root)
    while waiting and len(found) < MOST_RUNS:
        run = heapq.heappop(waiting)[-1]
        _extend(run.nodes)
        if run.parent >= 0:
            found[run.parent].drawn += 1
        _wait(waiting, order, len(found), run.salt, run.nodes[-1])
        found.append(run)
    drawn = sum(run.parent < 0 for run in found)
    return tuple(_frozen(tree, run, text_of) for run in found), beginnings - drawn


def _numbered(roots: Iterable[Node]) -> list[tuple[int, Node]]:
    numbers = count(1)  # salts may be secrets
    return [(-1 if root.last_used == FORGOTTEN else next(numbers) if root.key else 0, root) for root in roots]


def _wait(
    waiting: list[tuple[int, int, int, _Found]], order: "count[int]", parent: int, salt: int, above: Node
) -> None:
    """Let the hottest branches below a node wait to be drawn."""
    branches = heapq.nsmallest(MOST_RUNS, above.children.values(), key=_hotness)
    for node in branches:
        heapq.heappush(waiting, (*_hotness(node), next(order), _Found(parent, salt, [node])))


def _hotness(node: Node) -> tuple[int, int]:
    """The least is the hottest."""
    return -node.hits, -node.last_used


def _extend(nodes: list[Node]) -> None:
    """Add what follows without a branch, and is alike."""
    first = nodes[0]
    alike = first.hits, first.locks, _tiers(first)
    while len(nodes[-1].children) == 1:
        (child,) = nodes[-1].children.values()
        if (child.hits, child.locks, _tiers(child)) != alike:
            return
        nodes.append(child)


def _tiers(node: Node) -> tuple[Tier, ...]:
    tiers: list[tuple[Tier, int | None]] = [("device", node.page), ("host", node.host), ("disk", node.disk)]
    return tuple(tier for tier, held in tiers if held is not None)


def _frozen(tree: PrefixTree, run: _Found, text_of: Callable[[Sequence[int]], str]) -> Run:
    pages = run.nodes[: -(-SHOWN_TOKENS // tree.page_size)]
    tokens = [token for node in pages for token in tree.tokens_of(node)][:SHOWN_TOKENS]
    text = text_of(tokens) or f"token ids {' '.join(map(str, tokens[:16]))}"
    more = len(run.nodes) * tree.page_size > len(tokens)
    first, last = run.nodes[0], run.nodes[-1]
    return Run(
        parent=run.parent,
        salt=run.salt,
        text=f"{text} …" if more else text,
        pages=len(run.nodes),
        tiers=_tiers(first),
        hits=first.hits,
        locks=first.locks,
        hidden=len(last.children) - run.drawn,
    )
