"""Short descriptions of message contents."""

from collections.abc import Sequence

LONGEST = 60
"""The longest displayed text, in characters; errors may be three times as long."""
MOST = 10
"""The longest displayed list, in items."""


def describe_error(error: Exception) -> str:
    """Return an error's class and text."""
    return f"{type(error).__name__}: {quote(str(error), 3 * LONGEST)}"


def end_suffix(end: str | None) -> str:
    """Return the end reason as a suffix of a description, or an empty string."""
    return "" if end is None else f", ended: {end}"


def quote(text: str, longest: int = LONGEST) -> str:
    """Return the beginning of a text in quotes."""
    return repr(text if len(text) <= longest else f"{text[: longest - 1]}…")


def join_items(items: Sequence[object]) -> str:
    """Return the first items on one line."""
    return ", ".join(first_of(items))


def first_of(items: Sequence[object]) -> list[str]:
    """Return descriptions of the first items, with an ellipsis if there are more."""
    words = [str(item) for item in items[:MOST]]
    if len(items) > MOST:
        words.append("…")
    return words
