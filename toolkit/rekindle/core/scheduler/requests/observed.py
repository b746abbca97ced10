"""The positions of a prompt that a request looks at: for their log-probabilities, or for their hidden states."""

from dataclasses import dataclass

from rekindle.core.messages import Scoring, Summing
from rekindle.core.request.request import Request


@dataclass(slots=True, eq=False)
class Observed:
    """The progress of the ticks through those positions.

    Attributes:
        scored: the position of the next token to be scored by a tick; the prompt's length if none is.
        scores_settled: the same by the ticks that are settled.
        summed: the position of the next token whose hidden state is to be summed; the prompt's length if none is.
        sums_settled: the same by the ticks that are settled.
    """

    request: Request
    scored: int
    scores_settled: int
    summed: int
    sums_settled: int

    @classmethod
    def of(cls, request: Request) -> "Observed":
        """Begin with a request of which no tick was planned."""
        prompt, params = len(request.prompt), request.params
        scored = prompt if params.prompt_logprobs is None else max(1, params.prompt_logprobs_from)
        summed = {"last": prompt - 1, "mean": 0, None: prompt}[request.pooling]
        return cls(request, scored, scored, summed, summed)

    @property
    def first(self) -> int:
        """The first position that has to be computed, and cannot be found; the prompt's length if none has to."""
        prompt = len(self.request.prompt)
        return min(self.scored - 1 if self.scored < prompt else prompt, self.summed)

    def scoring(self, start: int, end: int) -> Scoring | None:
        """Return the tokens to score when these positions are computed; each position scores the token after it."""
        tokens = self.request.prompt[self.scored : end + 1]
        alternatives = self.request.params.prompt_logprobs
        if alternatives is None or not tokens:
            return None
        first = self.scored - 1 - start
        self.scored += len(tokens)
        return Scoring(first, tokens, alternatives)

    def summing(self, start: int, end: int) -> Summing | None:
        """Return the hidden states to sum when these positions are computed, or None."""
        first, end = self.summed, min(end, len(self.request.prompt))
        if not start <= first < end:
            return None
        self.summed = end
        return Summing(first - start, end - first)

    def lose_dispatched(self) -> None:
        """Expect nothing more of the ticks that are dispatched."""
        self.scored, self.summed = self.scores_settled, self.sums_settled
