"""Repetition in an output: a pattern of tokens, several times in a row at its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from rekindle.core.errors import InvalidRequest
from rekindle.core.keywords import hinted
from rekindle.core.request import checks

LONGEST_PATTERN: Final = 1024
MOST: Final = 2**20


@hinted
@dataclass(frozen=True, slots=True)
class RepetitionLimit:
    """Limit of repetition in an output, for `stop_on_repetition`.

    Attributes:
        longest: the maximum number of tokens in a pattern, from 1 to 1,024.
        times: the number of occurrences in a row at which the output ends, at least 2.
        tokens: the minimum number of tokens in these occurrences together.
        shortest: the minimum number of tokens in a pattern, at most `longest`.
    """

    longest: int = 128
    times: int = 4
    tokens: int = 64
    shortest: int = 1

    def __post_init__(self) -> None:
        """Check the limit.

        Raises:
            InvalidRequest: a number is out of range.
        """
        checks.integer("longest", self.longest, 1, LONGEST_PATTERN)
        checks.integer("times", self.times, 2, MOST)
        checks.integer("tokens", self.tokens, 0, MOST)
        checks.integer("shortest", self.shortest, 1, self.longest)


def repetition_limit(name: str, value: Any) -> RepetitionLimit | Literal[False] | None:
    """Validate a limit: True is the default limit, and a mapping has the attributes of one.

    Raises:
        InvalidRequest: the value is something else, or out of range.
    """
    if value is True:
        return RepetitionLimit()
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
        limit: as above.
        token_ids: the tokens so far.
    """

    def __init__(self, limit: RepetitionLimit):
        self.limit, self.token_ids = limit, list[int]()

    def push(self, token: int) -> bool:
        """Add a token; return True at the limit."""
        self.token_ids.append(token)
        return repeated_pattern(self.token_ids, self.limit) is not None
