"""Repetition in an output: a pattern of tokens, several times in a row at its end, and loops of its text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import hinted
from rekindle.core.request import checks

if TYPE_CHECKING:
    from rekindle.core.request.loops import Loops

LONGEST_PATTERN: Final = 1024
MOST: Final = 2**20
ROOM: Final = {"data": 16, "verse": 2, "prose": 1}
"""Factors of the limit by the kind of a text, for the default of chats."""


@hinted
@dataclass(frozen=True, slots=True)
class RepetitionLimit:
    """Limit of repetition in an output, for `stop_on_repetition`.

    Attributes:
        longest: the maximum number of tokens in a pattern, from 1 to 1,024.
        times: the number of occurrences in a row at which the output ends, at least 2.
        tokens: the minimum number of tokens in these occurrences together.
        shortest: the minimum number of tokens in a pattern, at most `longest`.
        reads_text: whether the text counts, too. Then `times` and `tokens` are 16 times as many in code, tables, JSON,
            logs and boards of figures, and twice as many in verse; and the output ends if a list restarts or
            sentences return with few changes, which equal tokens do not show. Default False.
    """

    longest: int = 128
    times: int = 4
    tokens: int = 64
    shortest: int = 1
    reads_text: bool = False

    def __post_init__(self) -> None:
        """Check the limit.

        Raises:
            InvalidRequest: a number is out of range.
        """
        checks.integer("longest", self.longest, 1, LONGEST_PATTERN)
        checks.integer("times", self.times, 2, MOST)
        checks.integer("tokens", self.tokens, 0, MOST)
        checks.integer("shortest", self.shortest, 1, self.longest)
        checks.boolean("reads_text", self.reads_text)

    def with_room(self, factor: int) -> "RepetitionLimit":
        """Return the limit with more occurrences and tokens."""
        return replace(self, times=min(MOST, factor * self.times), tokens=min(MOST, factor * self.tokens))


TEXTS: Final = RepetitionLimit(reads_text=True)
"""The limit of chats, and of `stop_on_repetition=True`."""


def repetition_limit(name: str, value: Any) -> RepetitionLimit | Literal[False] | None:
    """Validate a limit: True is the limit of chats, and a mapping has the attributes of one.

    Raises:
        InvalidRequest: the value is something else, or out of range.
    """
    if value is True:
        return TEXTS
    if value is None or value is False or isinstance(value, RepetitionLimit):
        return value
    names = [field.name for field in fields(RepetitionLimit)]
    if not isinstance(value, Mapping) or not set(value) <= set(names):
        raise InvalidRequest(
            f"{name} must be True, False, or a rekindle.RepetitionLimit ({', '.join(names)}), got "
            f"{checks.preview(value)}"
        )
    return RepetitionLimit(**value)


def repeated_pattern(token_ids: Sequence[int], limit: RepetitionLimit) -> int | None:
    """Return the length of the shortest pattern at its limit at the end of a sequence; None without one."""
    last = len(token_ids) - 1
    for period in range(limit.shortest, min(limit.longest, len(token_ids) // limit.times) + 1):
        span = max(limit.times * period, limit.tokens)
        if span > len(token_ids):
            return None
        # The first comparison rejects most lengths without a copy of tokens.
        if token_ids[last] == token_ids[last - period] and token_ids[-span:-period] == token_ids[period - span :]:
            return period
    return None


def first_occurrence(token_ids: Sequence[int], limit: RepetitionLimit) -> int:
    """Return the number of tokens up to the end of a repeated pattern's first occurrence; all tokens without one."""
    period = repeated_pattern(token_ids, limit)
    if period is None:
        return len(token_ids)
    end = len(token_ids)
    while end > period and token_ids[end - 1] == token_ids[end - 1 - period]:
        end -= 1
    return end


class RepetitionWatch:
    """Watch over the growing output of a request.

    Args:
        limit: the limit of repetition.

    Attributes:
        repeats_at: the index of the text at which the repetition begins again; None before the limit.
    """

    def __init__(self, limit: RepetitionLimit):
        self.repeats_at: int | None = None
        self._limit, self._token_ids = limit, list[int]()
        self._loops = _loops() if limit.reads_text else None
        self._texts, self._ends = list[str](), [0]  # of the tokens; the lengths of the text between them

    def push(self, token: int, text: str = "") -> bool:
        """Add a token with its text; return True at the limit."""
        self._token_ids.append(token)
        self._texts.append(text)
        self._ends.append(self._ends[-1] + len(text))
        again = None if self._loops is None else self._loops.push(text)
        if again is None and self._is_pattern():
            again = self._ends[first_occurrence(self._token_ids, self._limit)]
        self.repeats_at = again
        return again is not None

    def _is_pattern(self) -> bool:
        """Return True if the output ends with a pattern at the limit for its kind of text."""
        period = repeated_pattern(self._token_ids, self._limit)
        if period is None or self._loops is None:
            return period is not None
        room = ROOM["data" if self._is_board(period) else self._loops.kind]
        return room == 1 or repeated_pattern(self._token_ids, self._limit.with_room(room)) is not None

    def _is_board(self, period: int) -> bool:
        """Return True if a pattern is figures, or lines of signs."""
        pattern = "".join(self._texts[-period * self._limit.times :])
        signs = ((each.isascii() and not each.isalpha()) or "\u2500" <= each <= "\u25ff" for each in pattern)
        return all(signs) and any(each.isdigit() or each == "\n" for each in pattern)


def _loops() -> "Loops":
    """Return a watch over loops; the import is here because clients hold limits alone."""
    from rekindle.core.request.loops import Loops

    return Loops()
