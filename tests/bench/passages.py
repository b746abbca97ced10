"""Passages and a query for the bench of encoders: the topics of Python's own help, in pieces of a hundred words."""

from collections.abc import Iterator

QUERY = "How do I catch several exceptions in one clause?"
_WORDS, _STEP = 100, 76


def passages(count: int) -> list[str]:
    """Return the first passages, which overlap by a quarter."""
    found = [piece for text in _topics() for piece in _pieces(text.split())]
    if len(found) < count:
        raise SystemExit(f"expected at most {len(found)} passages with this Python, got {count}")
    return found[:count]


def _topics() -> Iterator[str]:
    from pydoc_data.topics import topics

    yield from (topics[name] for name in sorted(topics))


def _pieces(words: list[str]) -> Iterator[str]:
    for start in range(0, max(1, len(words)), _STEP):
        yield " ".join(words[start : start + _WORDS])
