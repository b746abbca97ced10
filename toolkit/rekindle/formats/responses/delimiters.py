"""Delimiters of the parts of an answer, matched in a text stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rekindle.formats.patterns import SECONDS, endless

if TYPE_CHECKING:
    import regex

NO_CAPTURES: Mapping[str, str] = {}
GROWS_BY = 64
"""Number of characters by which the optional end of a pattern may extend a match."""


@dataclass(frozen=True, slots=True)
class DelimiterMatch:
    """Match of a delimiter in a text.

    Attributes:
        start, end: position of the match.
        captures: texts of the pattern's named groups.
    """

    start: int
    end: int
    captures: Mapping[str, str] = field(default_factory=dict)


class Delimiter(Protocol):
    """A delimiter of an answer's parts."""

    def find(self, text: str, start: int, final: bool) -> tuple[DelimiterMatch | None, int]:
        """Find the first match.

        Args:
            text: all text received so far; text before `start` is context only.
            start: position to search from.
            final: whether the text is complete.

        Returns:
            The match, or None; and the first position from which more text could complete or extend a match. Without
            one, it is the length of the text.
        """
        ...

    def last_end(self, text: str) -> int | None:
        """Return the end of the last match in a complete text, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Literals:
    """Literal delimiters. The longest match wins at each position.

    Attributes:
        texts: the literals, longest first.
    """

    texts: tuple[str, ...]

    def find(self, text: str, start: int, final: bool) -> tuple[DelimiterMatch | None, int]:
        """See `Delimiter.find`."""
        best: DelimiterMatch | None = None
        for literal in self.texts:
            place = text.find(literal, start)
            if place >= 0 and (best is None or place < best.start):
                best = DelimiterMatch(place, place + len(literal))
        pending = len(text)
        if not final:
            pending = min(self._partial_start(text, start, literal) for literal in self.texts)
        return best, pending

    def last_end(self, text: str) -> int | None:
        """See `Delimiter.last_end`."""
        ends = [text.rfind(literal) + len(literal) for literal in self.texts if literal in text]
        return max(ends, default=None)

    def _partial_start(self, text: str, start: int, literal: str) -> int:
        """Return the start of an incomplete literal at the end of the text, or the text's length."""
        for length in range(min(len(literal) - 1, len(text) - start), 0, -1):
            if text.endswith(literal[:length]):
                return len(text) - length
        return len(text)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression as a delimiter. Its named groups are captured.

    Attributes:
        expression: a pattern of the `regex` library, because partial matches at the end of a text are needed.
    """

    expression: regex.Pattern[str]

    def find(self, text: str, start: int, final: bool) -> tuple[DelimiterMatch | None, int]:
        """See `Delimiter.find`."""
        with self._limited(text):
            match = self.expression.search(text, start, partial=not final, timeout=SECONDS)
        if match is None:
            return None, len(text)
        if not final and (match.partial or self._may_grow(text, match.start(), match.end())):
            return None, match.start()
        captures = {name: value for name, value in match.groupdict().items() if value is not None}
        return DelimiterMatch(match.start(), match.end(), captures), len(text)

    def _may_grow(self, text: str, start: int, end: int) -> bool:
        """Return True if more text could extend a match, for example by an optional end.

        Patterns like `.*?x` could always be extended, so a match is accepted after `GROWS_BY` more characters.
        """
        if len(text) - end > GROWS_BY:
            return False
        with self._limited(text):
            return end == len(text) or self.expression.fullmatch(text, start, partial=True, timeout=SECONDS) is not None

    def last_end(self, text: str) -> int | None:
        """See `Delimiter.last_end`."""
        last = None
        with self._limited(text):
            for match in self.expression.finditer(text, timeout=SECONDS):
                last = match.end()
        return last

    @contextmanager
    def _limited(self, text: str) -> Iterator[None]:
        """Raise CheckpointError for a match that takes too long."""
        try:
            yield
        except TimeoutError as error:
            raise endless(self.expression.pattern, text, "the model's response template") from error
