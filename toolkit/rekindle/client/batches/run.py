"""The requests of a batch, once they are submitted: their ends as they come, and what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rekindle.client.handle import Handle
from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.feed import Feed
from rekindle.core.errors import BatchFailed, RequestCancelled
from rekindle.core.markup import quantity
from rekindle.results.answer_table import PromptLabel
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation

Errors = Literal["raise", "return"]
"""What a batch does with the error of one of its requests."""
Outcome = Generation | Exception
"""A generation, or the error in its place. That may be one of the model's own chat template."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of what a call returns.

    Attributes:
        several: whether prompts came as a list.
        n: draws for each prompt; None for one that is not returned as a list.
    """

    several: bool
    n: int | None

    @property
    def listed(self) -> bool:
        """Tell whether a list is returned."""
        return self.several or self.n is not None

    def of(self, outcomes: Sequence[Any], asked: Sequence[PromptLabel]) -> Answers[Any]:
        """Return the outcomes, which come draw by draw of each prompt, in this shape; `asked` has each prompt."""
        if self.n is None:
            return Answers(outcomes, asked)
        groups = [
            Answers(outcomes[at : at + self.n], [prompt] * self.n)
            for prompt, at in zip(asked, range(0, len(outcomes), self.n), strict=True)
        ]
        return Answers(groups, asked) if self.several else groups[0]


class BatchRun:
    """The requests of one batch, draw by draw of each prompt.

    Args:
        asked: what was asked in each prompt.
        shape: that of what is returned.
        made: the request of each draw, or in its place the error for which there is none.
        errors: whether the first failure is raised.
        keeps_cancelled: whether what had come of a cancelled request is its outcome, which is no failure then.

    Attributes:
        asked, made: as above.
        ends: the places of the requests that have ended, as they end; those that were never made are the first.
            Closed once all have ended or, if failures are raised, one has failed.
        failed: the place of the first that failed, if failures are raised.
    """

    def __init__(
        self,
        asked: Sequence[PromptLabel],
        shape: Shape,
        made: Sequence[Handle | Exception],
        errors: Errors,
        *,
        keeps_cancelled: bool = False,
    ):
        self.asked, self._shape, self.made, self._errors = asked, shape, made, errors
        self._keeps_cancelled = keeps_cancelled
        self._kept: dict[int, Generation] = {}
        self.failed: int | None = None
        self.ends: Feed[int] = Feed()
        for place, each in enumerate(made):
            if isinstance(each, Exception):
                self._ended(place)
        for place, each in enumerate(made):
            if isinstance(each, Handle):
                each.record.pieces.when_closed(partial(self._ended, place))
        if not made:
            self.ends.close()

    def __len__(self) -> int:
        return len(self.made)

    @property
    def handles(self) -> list[Handle]:
        """The requests that were made."""
        return [each for each in self.made if isinstance(each, Handle)]

    def outcome(self, place: int) -> Outcome | None:
        """Return what came of a request; None if it has not ended."""
        each = self.made[place]
        if isinstance(each, Exception):
            return each
        outcome = each.record.outcome
        if not self._keeps_cancelled or not isinstance(outcome, RequestCancelled):
            return outcome
        if place not in self._kept:  # once, since its time would go on
            self._kept[place] = each.record.so_far()
        return self._kept[place]

    def answers(self) -> Answers[Any]:
        """Return what came of all requests, None for each that has not ended.

        Raises:
            BatchFailed: one has failed, and failures are raised.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        outcomes = [self.outcome(place) for place in range(len(self))]
        if self.failed is None:
            return self._shape.of(outcomes, self.asked)
        error, finished = outcomes[self.failed], sum(isinstance(outcome, Generation) for outcome in outcomes)
        assert isinstance(error, Exception)
        raise BatchFailed(
            f"request {self.failed} of {len(outcomes)} failed: {error}. Its error is the cause of this one; "
            f"{finished} others had ended and are in results of this error, and the rest were cancelled. "
            'errors="return" goes on instead',
            self._shape.of(outcomes, self.asked),
        ) from error

    def so_far(self) -> Answers[Any]:
        """Return what has come of all requests until now, as if those that have not ended were cancelled now."""
        outcomes = [self.outcome(place) for place in range(len(self))]
        gone = [
            each.record.so_far()
            if isinstance(each, Handle) and isinstance(outcome, RequestCancelled | None)
            else outcome
            for each, outcome in zip(self.made, outcomes, strict=True)
        ]
        return self._shape.of(gone, self.asked)

    def cancel(self) -> None:
        """End all requests that have not ended."""
        for handle in self.handles:
            handle.cancel()

    def leave(self, left: BaseException) -> None:
        """Have an interrupt say what had ended."""
        answers = [each.generation if isinstance(each, Handle) else None for each in self.made]
        done = f"{sum(answer is not None for answer in answers)} of {quantity(len(answers), 'request')}"
        words = f"interrupted when {done} had ended; their answers are in `finished` of this error"
        interrupts.tell(left, words, "finished", self._shape.of(answers, self.asked))

    def _ended(self, place: int) -> None:
        """Take note of an end; several threads may do so at once."""
        if self.ends.closed:
            return
        if self._errors == "raise" and self._has_failed(place) and self.failed is None:
            self.failed = place
        self.ends.put(place)
        if self.failed is not None or len(self.ends.items) == len(self.made):
            self.ends.close()

    def _has_failed(self, place: int) -> bool:
        """Tell whether a request that has ended failed, without taking its answer apart."""
        each = self.made[place]
        error = each if isinstance(each, Exception) else each.record.error
        return error is not None and not (self._keeps_cancelled and isinstance(error, RequestCancelled))
