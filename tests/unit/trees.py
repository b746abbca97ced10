"""Make prefix trees of texts, whose characters are their tokens, and look at them."""

from collections.abc import Sequence

from rekindle.core.scheduler.cache.tree import PrefixTree
from rekindle.views.cache.view import CacheView, view


def published(tree: PrefixTree, text: str, *, hits: int = 0, salt: str = "") -> None:
    """Cache the whole pages of a text whose characters are its tokens."""
    tokens = [ord(character) for character in text][: len(text) // tree.page_size * tree.page_size]
    found = tree.match(salt, tokens)
    tip = found[-1] if found else tree.root(salt)
    tree.lock(tip)
    more = tokens[len(found) * tree.page_size :]
    tip, _ = tree.publish(tip, more, range(tree.nodes, tree.nodes + len(more) // tree.page_size))
    for _ in range(hits):
        tree.hit(tip)
    tree.unlock(tip)


def viewed(tree: PrefixTree) -> CacheView:
    def text_of(tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    return view([tree], 1000, 0, text_of).with_texts(text_of)
