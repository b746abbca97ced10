"""Budgets of thoughts, kept by counts of tokens alone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

MARK: Final = b"\xff"
"""Byte before each delimiter in the vocabulary; no text has this byte."""


@dataclass(frozen=True, slots=True)
class ThoughtLimit:
    """The limit of the thoughts of one answer, in the format of its model.

    Attributes:
        budget: the most tokens of all thoughts together.
        opening, closing: the delimiters of a thought, in bytes.
        ends: the tokens of the closing delimiter after each number of its bytes.
        following: the tokens after this delimiter: at the first forced end, and at later ones.
        once: whether an answer thinks at its beginning only.
        is_open: whether the prompt ends within a thought.
        used: the number of tokens of the thought in the prompt.
        bytes_of: returns the bytes of a token.
        masks: the mask of each forced token, and of all tokens by None, as in `Allowed.bits`.
    """

    budget: int
    opening: bytes
    closing: bytes
    ends: tuple[tuple[int, ...], ...]
    following: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    once: bool = True
    is_open: bool = False
    used: int = 0
    bytes_of: Callable[[int], bytes] = field(compare=False, repr=False, default=lambda token: b"")
    masks: Mapping[int | None, Any] = field(compare=False, repr=False, default_factory=dict)


class ThoughtWatch:
    """Watch over the thoughts in the growing output of a request.

    Args:
        limit: the limit of thoughts.
        token_ids: the first tokens of the output.

    Attributes:
        forced: the next tokens of the output, to end a thought; empty while the model may choose.
    """

    def __init__(self, limit: ThoughtLimit, token_ids: Iterable[int] = ()):
        self._limit, self._is_open, self._used = limit, limit.is_open, limit.used
        self._matched = b""  # the beginning of the next delimiter, at the end of the output
        self._whole = 0  # the number of tokens within it
        self._is_over = False
        self._forced_ends = 0
        self.forced: tuple[int, ...] = ()
        self._force()
        for token in token_ids:
            self.push(token)

    def push(self, token: int) -> None:
        """Add the next token of the output."""
        self.forced = self.forced[1:] if self.forced[:1] == (token,) else ()
        if self._is_over:
            return
        self._used += self._is_open
        delimiter = self._limit.closing if self._is_open else self._limit.opening
        added = self._limit.bytes_of(token)
        text = self._matched + added
        if (start := text.find(delimiter)) >= 0:
            # A token that begins before the delimiter belongs to the thought.
            self._used -= (self._whole + (start <= len(self._matched))) * self._is_open
            self._is_open, self._matched, self._whole = not self._is_open, b"", 0
            self._is_over = self._limit.once and not self._is_open
        else:
            before, self._matched = len(self._matched), _beginning(delimiter, text)
            goes_on = len(self._matched) == before + len(added)
            self._whole = self._whole + 1 if goes_on else int(len(self._matched) == len(added))
            is_answer = not self._is_open and text.strip() != self._matched
            self._is_over = self._limit.once and is_answer
        self._force()

    @property
    def room(self) -> float:
        """The number of next tokens that are certain or free: no choice among these ends a thought by force."""
        unused = max(0, self._limit.budget - self._used)
        if self._is_over or (self.forced and self._limit.once):
            return inf
        if self.forced or not self._is_open:
            rest = self._limit.opening if self.forced else self._limit.opening[len(self._matched) :]
            return len(self.forced) + max(1, rest.count(MARK)) + unused
        return unused

    def _force(self) -> None:
        if self._is_open and not self.forced and self._used >= self._limit.budget:
            again = min(self._forced_ends, 1)
            self.forced = self._limit.ends[len(self._matched)] + self._limit.following[again]
            self._forced_ends += 1


def _beginning(delimiter: bytes, text: bytes) -> bytes:
    """Return the longest end of a text that begins a delimiter."""
    lengths = range(min(len(delimiter) - 1, len(text)), 0, -1)
    return next((delimiter[:length] for length in lengths if text.endswith(delimiter[:length])), b"")
