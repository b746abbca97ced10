"""Labels of prefixes that begin alike: each begins where its prefix differs from the others."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T", str, list[int], tuple[int, ...])

LONGEST_WORD = 16
"""How many characters a label goes back at most, to begin with a whole word."""
LEAST_GAP = 16
"""How many characters that others have too are still shown: so few do not hide the difference."""
LONGEST_LABEL = 64
"""How many characters of a text are shown without a gap."""
ENDS = 30
"""How many characters of a longer text are shown before the gap, and how many after it."""


def alike(prefixes: Sequence[T]) -> list[int]:
    """Return for each prefix how many of its first tokens, or characters, another of them has too.

    Args:
        prefixes: token ids or texts, none of which is the beginning of another.
    """
    shared = [0] * len(prefixes)
    # Of all others, a neighbour in this order has the most in common with a prefix.
    order = sorted(range(len(prefixes)), key=lambda place: prefixes[place])
    for one, other in pairwise(order):
        common = _common(prefixes[one], prefixes[other])
        shared[one], shared[other] = max(shared[one], common), common
    return shared


def label_start(text: str, shared: int) -> int:
    """Return where a label of a text begins, of which others share so many characters: with a whole word, or at 0."""
    first = max(0, shared - LONGEST_WORD)
    start = next((place for place in range(shared, first, -1) if _is_between_words(text, place)), shared)
    return start if start > LEAST_GAP else 0


def after_a_gap(text: str) -> str:
    """Return a text after the sign that something before it is left out."""
    return f"…{text}" if text[:1].isspace() else f"… {text}"


def label(prefix: str | Sequence[int], shared: int) -> str:
    """Return a prefix in a few words: where it differs from others, of which it shares so much, or else its ends."""
    if not isinstance(prefix, str):
        gap, shown = (4, prefix[shared : shared + 8]) if shared else (4, prefix[-4:])
        return f"token ids {list(prefix[:gap])} … {list(shown)}"
    if len(prefix) <= LONGEST_LABEL:
        return repr(prefix)
    start = label_start(prefix, min(shared, len(prefix) - 1))
    if not start:
        return repr(f"{prefix[:ENDS]} … {prefix[-ENDS:]}")
    if start <= ENDS:
        return repr(f"{prefix[:LONGEST_LABEL]} …")
    more = " …" if start + ENDS < len(prefix) else ""
    return repr(f"{prefix[:ENDS]} {after_a_gap(prefix[start : start + ENDS])}{more}")


def _is_between_words(text: str, place: int) -> bool:
    return text[place - 1].isspace() or text[place : place + 1].isspace()


def _common(one: str | Sequence[int], other: str | Sequence[int]) -> int:
    different = (place for place, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its)
    return next(different, min(len(one), len(other)))
