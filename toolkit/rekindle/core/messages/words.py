"""How messages put what they carry into words."""

from collections.abc import Sequence

LONGEST = 60
"""Characters of a text that are shown; those of an error are three times as many."""
MOST = 10
"""Items of a list that are shown."""


def describe_error(error: Exception) -> str:
    """Return an error's kind and text."""
    return f"{type(error).__name__}: {quote(str(error), 3 * LONGEST)}"


def end_suffix(end: str | None) -> str:
    """Return why an output ended, to be put behind what is said of it; nothing if it has not."""
    return "" if end is None else f", ended: {end}"


def quote(text: str, longest: int = LONGEST) -> str:
    """Return the beginning of a text in quotes."""
    return repr(text if len(text) <= longest else f"{text[: longest - 1]}…")


def join_items(items: Sequence[object]) -> str:
    """Return the first items on one line."""
    return ", ".join(first_of(items))


def first_of(items: Sequence[object]) -> list[str]:
    """Return the first items in words, and a sign if there are more."""
    words = [str(item) for item in items[:MOST]]
    if len(items) > MOST:
        words.append("…")
    return words
