"""The end of a turn of the assistant, as the format of its answers defines it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rekindle.core.text.stops import StopMatcher
from rekindle.core.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rekindle.formats.responses.reading.content_stops import ContentStops
    from rekindle.formats.responses.reading.first_call import FirstCall


@dataclass(frozen=True, slots=True)
class AnswerTurns:
    """The turns of a model's answers, for the detokenizer.

    Attributes:
        tokenizer: the tokenizer of the model; the format depends on its chat template.
    """

    tokenizer: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer | None) -> "AnswerTurns | None":
        """Return the turns of a model; None without a tokenizer."""
        return None if tokenizer is None else cls(tokenizer)

    def first_call(self, prompt: Sequence[int], tools: Sequence[str], goes_on: bool) -> "FirstCall":
        """Return the watcher of an answer with an end after its first call of one of the tools."""
        from rekindle.formats.responses.reading.first_call import FirstCall

        return FirstCall(self.tokenizer, prompt, tools, goes_on)

    def content_stops(
        self, matcher: StopMatcher, prompt: Sequence[int], calls: bool, shows_special: bool
    ) -> "StopMatcher | ContentStops":
        """Return the matcher of an answer's stop strings; see `content_stops`."""
        from rekindle.formats.responses.reading.content_stops import content_stops

        return content_stops(matcher, self.tokenizer, prompt, calls, shows_special)
