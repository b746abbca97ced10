"""Make and view prefix trees of texts; their characters are their tokens."""

from collections.abc import Sequence

from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.views.cache.view import CacheView, view


def published(tree: PrefixTree, text: str, *, hits: int = 0, salt: str = "") -> None:
    """Cache the whole pages of a text; its characters are its tokens."""
    tokens = [ord(character) for character in text][: len(text) // tree.page_size * tree.page_size]
    nodes = tree.match(salt, tokens)
    tip = nodes[-1] if nodes else tree.root(salt)
    tree.lock(tip)
    more = tokens[len(nodes) * tree.page_size :]
    tip, _ = tree.publish(tip, more, range(tree.ledger.nodes, tree.ledger.nodes + len(more) // tree.page_size))
    for _ in range(hits):
        tree.hit(tip)
    tree.unlock(tip)


def viewed(tree: PrefixTree) -> CacheView:
    def text_of(tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    return view([tree], 1000, 0, text_of).with_texts(text_of)
