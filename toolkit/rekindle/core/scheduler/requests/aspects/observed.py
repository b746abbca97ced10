"""Observed positions of a prompt: those with requested log-probabilities or hidden states."""

from dataclasses import dataclass

from rekindle.core.messages import Scoring, Summing
from rekindle.core.request.request import Request


@dataclass(slots=True, eq=False)
class Observed:
    """The progress of one request through its observed positions.

    Attributes:
        next_score: the position of the next token to score in a plan; the prompt's length if none is left.
        scores_settled: `next_score` as of the last settled tick.
        next_sum: the position of the next hidden state to sum in a plan; the prompt's length if none is left.
        sums_settled: `next_sum` as of the last settled tick.
    """

    request: Request
    next_score: int
    scores_settled: int
    next_sum: int
    sums_settled: int

    @classmethod
    def of(cls, request: Request) -> "Observed":
        """Return the initial progress of a request."""
        prompt, params = len(request.prompt), request.params
        next_score = prompt if params.prompt_logprobs is None else max(1, params.prompt_logprobs_from)
        next_sum = {"cls": 0, "last": prompt - 1, "mean": 0, "tokens": 0, None: prompt}[request.pooling]
        return cls(request, next_score, next_score, next_sum, next_sum)

    @property
    def first(self) -> int:
        """The first position to compute even if cached; the prompt's length if there is none."""
        prompt = len(self.request.prompt)
        return min(self.next_score - 1 if self.next_score < prompt else prompt, self.next_sum)

    @property
    def is_divided(self) -> bool:
        """True if some of its observed positions are in plans so far, and others are not."""
        prompt, initial = len(self.request.prompt), Observed.of(self.request)
        return initial.next_score < self.next_score < prompt or initial.next_sum < self.next_sum < prompt

    def scoring(self, start: int, end: int) -> Scoring | None:
        """Return the tokens to score in a chunk from `start` to `end`; each position scores the next token."""
        tokens = self.request.prompt[self.next_score : end + 1]
        alternatives = self.request.params.prompt_logprobs
        if alternatives is None or not tokens:
            return None
        first = self.next_score - 1 - start
        self.next_score += len(tokens)
        return Scoring(first, tokens, alternatives)

    def summing(self, start: int, end: int) -> Summing | None:
        """Return the hidden states to sum in a chunk from `start` to `end`, or None; with "cls", the first."""
        first, end = self.next_sum, min(end, len(self.request.prompt))
        if not start <= first < end:
            return None
        self.next_sum = end
        pooling = self.request.pooling
        return Summing(first - start, 1 if pooling == "cls" else end - first, pooling == "tokens")

    def lose_dispatched(self) -> None:
        """Return to the progress of the settled ticks; results of dispatched ones are lost."""
        self.next_score, self.next_sum = self.scores_settled, self.sums_settled
