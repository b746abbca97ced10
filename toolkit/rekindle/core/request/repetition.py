"""Repetition in an output: a pattern of tokens, several times in a row at its end."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RepetitionLimit:
    """Limit of repetition in an output.

    Attributes:
        longest: the maximum number of tokens in a pattern.
        times: the number of occurrences in a row at which the output ends, at least 2.
        tokens: the minimum number of tokens in these occurrences together.
    """

    longest: int = 128
    times: int = 4
    tokens: int = 64


def repeated_pattern(token_ids: Sequence[int], limit: RepetitionLimit) -> int | None:
    """Return the length of the shortest pattern at its limit at the end of a sequence; None without one."""
    last = len(token_ids) - 1
    for period in range(1, min(limit.longest, len(token_ids) // limit.times) + 1):
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
    """

    def __init__(self, limit: RepetitionLimit):
        self._limit, self._token_ids = limit, list[int]()

    def push(self, token: int) -> bool:
        """Add a token; return True at the limit."""
        self._token_ids.append(token)
        return repeated_pattern(self._token_ids, self._limit) is not None
