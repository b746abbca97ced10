"""Regular expressions of a model's files, matched under a time limit: some would never end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rekindle.core.errors import CheckpointError

if TYPE_CHECKING:
    import regex

SECONDS: Final = 0.5
"""Longest time of a match, thousands of times that of any published pattern."""


def match_all(pattern: str, text: str, source: str) -> regex.Match[str] | None:
    """Return the match of a pattern with a whole text, or None; raises as `match_start` does."""
    return _match(rf"(?:{pattern})\Z", text, source)


def match_start(pattern: str, text: str, source: str) -> regex.Match[str] | None:
    """Return the match of a pattern at the start of a text, or None.

    Args:
        pattern: the pattern of a file.
        text: the text.
        source: the file and the entry with the pattern, for errors.

    Raises:
        CheckpointError: the pattern is not a regular expression, or takes too long.
    """
    return _match(pattern, text, source)


def _match(pattern: str, text: str, source: str) -> regex.Match[str] | None:
    import regex

    try:
        return regex.match(pattern, text, timeout=SECONDS, concurrent=True)  # other threads go on meanwhile
    except (regex.error, TypeError, RecursionError) as error:
        raise CheckpointError(f"{source} has {pattern!r:.80}, no regular expression: {error}") from error
    except TimeoutError as error:
        raise endless(pattern, text, source) from error


def endless(pattern: str, text: str, source: str) -> CheckpointError:
    """Return the error about a pattern that takes too long for a text."""
    return CheckpointError(
        f"{source} has {pattern!r:.80}, a pattern that takes more than {SECONDS:g} s for {text!r:.80}: name modules "
        "instead, or write it without repetitions within repetitions"
    )
