"""The marks in a text at which a part of an answer begins or ends, found in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import regex

NO_CAPTURES: Mapping[str, str] = {}
GROWS_BY = 64
"""By how many characters the optional end of a pattern may make a match longer."""


@dataclass(frozen=True, slots=True)
class FoundMark:
    """A mark in a text.

    Attributes:
        start, end: its place.
        captures: the texts of the named groups of a pattern.
    """

    start: int
    end: int
    captures: Mapping[str, str] = field(default_factory=dict)


class Delimiter(Protocol):
    """A kind of mark."""

    def find(self, text: str, start: int, final: bool) -> tuple[FoundMark | None, int]:
        """Look for the first mark.

        Args:
            text: all of what has come; what is before `start` is context alone.
            start: where to begin.
            final: whether nothing more will come.

        Returns:
            The mark, or None; and from where on the text may be a mark that is not complete, or that could be a longer
            one: the length of the text if it is not.
        """
        ...

    def last_end(self, text: str) -> int | None:
        """Return where the last mark of a whole text ends."""
        ...


@dataclass(frozen=True, slots=True)
class Literals:
    """Marks that are texts, of which the longest counts where several begin at one place.

    Attributes:
        texts: the longest first.
    """

    texts: tuple[str, ...]

    def find(self, text: str, start: int, final: bool) -> tuple[FoundMark | None, int]:
        """See `Delimiter.find`."""
        best: FoundMark | None = None
        for literal in self.texts:
            place = text.find(literal, start)
            if place >= 0 and (best is None or place < best.start):
                best = FoundMark(place, place + len(literal))
        pending = len(text)
        if not final:
            pending = min(self._begun(text, start, literal) for literal in self.texts)
        return best, pending

    def last_end(self, text: str) -> int | None:
        """See `Delimiter.last_end`."""
        ends = [text.rfind(literal) + len(literal) for literal in self.texts if literal in text]
        return max(ends, default=None)

    def _begun(self, text: str, start: int, literal: str) -> int:
        """Return from where on the end of a text is the beginning of a literal, but not all of it."""
        for length in range(min(len(literal) - 1, len(text) - start), 0, -1):
            if text.endswith(literal[:length]):
                return len(text) - length
        return len(text)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression, whose named groups are captured.

    Attributes:
        compiled: of the `regex` library, which knows of a match that the end of the text cuts.
    """

    compiled: regex.Pattern[str]

    def find(self, text: str, start: int, final: bool) -> tuple[FoundMark | None, int]:
        """See `Delimiter.find`."""
        match = self.compiled.search(text, start, partial=not final)
        if match is None:
            return None, len(text)
        if not final and (match.partial or self._may_grow(text, match.start(), match.end())):
            return None, match.start()
        captures = {name: value for name, value in match.groupdict().items() if value is not None}
        return FoundMark(match.start(), match.end(), captures), len(text)

    def _may_grow(self, text: str, start: int, end: int) -> bool:
        """Tell whether more text could make a match longer, as where it may end with one more mark.

        A pattern such as `.*?x` could take any text; it has its match all the same, once so much has come.
        """
        if len(text) - end > GROWS_BY:
            return False
        return end == len(text) or self.compiled.fullmatch(text, start, partial=True) is not None

    def last_end(self, text: str) -> int | None:
        """See `Delimiter.last_end`."""
        last = None
        for match in self.compiled.finditer(text):
            last = match.end()
        return last
