"""Formats of answers in conversations, for the detokenizer."""

from collections.abc import Sequence
from typing import Protocol

from rekindle.core.text.stops import StopMatcher


class CallWatcher(Protocol):
    """Watcher of one answer for the end of its first tool call."""

    def push(self, token: int) -> int | None:
        """Add the next token; return the number of tokens up to the end of the first call, or None before."""


class TurnStops(Protocol):
    """Matcher of one answer's stop strings in its content alone."""

    def push(self, token: int, text: str, may_stop: bool, hidden: bool) -> tuple[str, str | None]:
        """Consume the text of the next token; see `StopMatcher.push`."""

    def finish(self, text: str = "", may_stop: bool = True) -> tuple[str, str | None]:
        """Consume the last piece of text; see `StopMatcher.finish`."""


class Turns(Protocol):
    """The format of a model's answers in a conversation; `rekindle.formats.responses.reading.turns` has it."""

    def first_call(self, prompt: Sequence[int], tools: Sequence[str], goes_on: bool) -> CallWatcher:
        """Return the watcher of an answer with an end after its first call of one of the tools."""

    def content_stops(
        self, matcher: StopMatcher, prompt: Sequence[int], calls: bool, shows_special: bool
    ) -> StopMatcher | TurnStops:
        """Return the matcher of an answer's stop strings: the given one if all of the answer is content.

        Args:
            prompt: the token ids of the prompt, perhaps with the beginning of the reasoning.
            calls: whether the answer may call tools.
            shows_special: whether the answer's text includes special tokens.
        """
