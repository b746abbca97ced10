"""Measure the prefix tree: a prompt of 8,000 tokens among 100,000 nodes, and one page that changes its tier.

This is host work in one thread. The numbers are medians over many calls, in microseconds.
"""

import argparse
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from random import Random
from statistics import median
from time import perf_counter

from rekindle.core.scheduler.cache.nodes import Node
from rekindle.core.scheduler.cache.tree import PrefixTree

PROMPT, NODES, VOCAB_SIZE, ROUNDS = 8000, 100_000, 150_000, 41


def microseconds(action: Callable[[], object]) -> float:
    start = perf_counter()
    action()
    return 1e6 * (perf_counter() - start)


class FilledTree:
    """A tree of many unlocked prompts in the device tier. Half of the prompts continue the first half of another."""

    def __init__(self, page_size: int, nodes: int, prompt: int = PROMPT):
        self.tree = PrefixTree(page_size)
        self.prompt = prompt // page_size * page_size
        self.random = Random(page_size)
        self.pages: Iterator[int] = count(1)
        self.prompts: list[array[int]] = []
        while self.tree.ledger.nodes < nodes:
            self.prompts.append(self.fresh(shared=len(self.prompts) % 2 == 1))
            self.tree.unlock(self.publish(self.prompts[-1]))

    def fresh(self, *, shared: bool = False) -> "array[int]":
        """Make a prompt without pages in the tree, or with pages of its first half only."""
        tokens = array("i", (self.random.randrange(VOCAB_SIZE) for _ in range(self.prompt)))
        half = self.prompt // 2
        return self.random.choice(self.prompts)[:half] + tokens[half:] if shared else tokens

    def publish(self, tokens: "array[int]") -> Node:
        """Publish a whole prompt, and return its locked tip."""
        root = self.tree.root("")
        self.tree.lock(root)
        pages = [next(self.pages) for _ in range(len(tokens) // self.tree.page_size)]
        return self.tree.publish(root, tokens, pages)[0]


def prompts(page_size: int) -> None:
    """Print the costs of one prompt."""
    filled = FilledTree(page_size, NODES)
    tree, spent = filled.tree, defaultdict[str, list[float]](list)
    for _ in range(ROUNDS):
        tokens = filled.random.choice(filled.prompts).tolist()
        packed, tip = array("i", tokens), tree.match("", tokens)[-1]
        spent["match"].append(microseconds(partial(tree.match, "", tokens)))
        spent["match, given an array"].append(microseconds(partial(tree.match, "", packed)))
        spent["lock"].append(microseconds(partial(tree.lock, tip)))
        spent["unlock"].append(microseconds(partial(tree.unlock, tip)))
        root, fresh = tree.root(""), filled.fresh().tolist()
        pages = [next(filled.pages) for _ in range(len(fresh) // page_size)]
        tree.lock(root)
        spent["publish"].append(microseconds(partial(tree.publish, root, fresh, pages)))
        tree.unlock(tree.match("", fresh)[-1])
    print(f"{PROMPT:,} tokens, pages of {page_size}, {tree.ledger.nodes:,} nodes:")
    for name, times in spent.items():
        print(f"  {name:24} {median(times):7.0f} µs, worst {max(times):.0f}")


def page(nodes: int) -> None:
    """Print the costs of offloading, evicting and pruning one page, over half of the tree."""
    tree = FilledTree(16, nodes, prompt=800).tree
    half = tree.ledger.nodes // 2

    def offload() -> None:
        for entry, node in enumerate(tree.next_to_offload(half)):
            tree.add_host_copy(node, entry)

    spent = {
        "offload": microseconds(offload),
        "evict": microseconds(lambda: [tree.evict(1) for _ in range(half)]),
        "prune": microseconds(lambda: deque((tree.prune(1) for _ in range(half)), maxlen=0)),
    }
    each = ", ".join(f"{name} {time / half:.1f} µs" for name, time in spent.items())
    print(f"one page of {tree.ledger.nodes + half:,} nodes: {each}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for page_size in (16, 64):
        prompts(page_size)
    for nodes in (1_000, 10_000, 100_000):
        page(nodes)
