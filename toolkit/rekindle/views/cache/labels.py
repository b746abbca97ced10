"""Short labels of prefixes with common beginnings. A label shows the first difference from the others."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T", str, list[int], tuple[int, ...])

MAX_WORD = 16
"""The maximum number of common characters added before the difference, to start a label with a whole word."""
MAX_BEGINNING = 16
"""The maximum length of an omissible beginning kept in a label. A longer one would hide the difference."""
MAX_LABEL = 64
"""The maximum number of characters of a text labelled without a gap."""
ENDS = 30
"""The number of characters of a longer text before its gap, and the number after it."""


def shared_lengths(prefixes: Sequence[T]) -> list[int]:
    """Return for each prefix the length of its longest common beginning with another, in tokens or characters.

    Args:
        prefixes: token ids or texts. No prefix is the beginning of another.
    """
    shared = [0] * len(prefixes)
    # In sorted order, the longest common beginning is with a neighbour.
    order = sorted(range(len(prefixes)), key=lambda place: prefixes[place])
    for one, other in pairwise(order):
        common = _common(prefixes[one], prefixes[other])
        shared[one], shared[other] = max(shared[one], common), common
    return shared


def label_start(text: str, shared: int) -> int:
    """Return the index of a label's first character, at or before the difference at `shared`.

    It is at the boundary of a word, if one is near; 0 for a short beginning.
    """
    first = max(0, shared - MAX_WORD)
    start = next((place for place in range(shared, first, -1) if _is_between_words(text, place)), shared)
    return start if start > MAX_BEGINNING else 0


def after_ellipsis(text: str) -> str:
    """Return a text with an ellipsis before it, for the omitted beginning."""
    return f"…{text}" if text[:1].isspace() else f"… {text}"


def label(prefix: str | Sequence[int], shared: int) -> str:
    """Return a short label of a prefix: its text after `shared` common tokens or characters, or its ends."""
    if not isinstance(prefix, str):
        tail = prefix[shared : shared + 8] if shared else prefix[-4:]
        return f"token ids {list(prefix[:4])} … {list(tail)}"
    if len(prefix) <= MAX_LABEL:
        return repr(prefix)
    start = label_start(prefix, min(shared, len(prefix) - 1))
    if not start:
        return repr(f"{prefix[:ENDS]} … {prefix[-ENDS:]}")
    if start <= ENDS:
        return repr(f"{prefix[:MAX_LABEL]} …")
    more = " …" if start + ENDS < len(prefix) else ""
    return repr(f"{prefix[:ENDS]} {after_ellipsis(prefix[start : start + ENDS])}{more}")


def _is_between_words(text: str, place: int) -> bool:
    return text[place - 1].isspace() or text[place : place + 1].isspace()


def _common(one: str | Sequence[int], other: str | Sequence[int]) -> int:
    different = (place for place, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its)
    return next(different, min(len(one), len(other)))
