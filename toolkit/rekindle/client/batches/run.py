"""Submitted requests of a batch: their ends in order, and their outcomes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rekindle.client.handle import Handle
from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.feed import Feed
from rekindle.core.concurrency.waits import Waits, pause
from rekindle.core.errors import BatchFailed, RequestCancelled
from rekindle.core.words import quantity
from rekindle.results.answer_table import PromptLabel
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation

AT_ONCE = 64
"""Requests submitted before other tasks of the caller's loop run."""
Errors = Literal["raise", "return"]
"""Option of a batch: raise the first error, or return each error in the place of its generation."""
Outcome = Generation | Exception
"""A generation, or the error in its place. A failing chat template may raise any kind of error."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of the result of a call.

    Attributes:
        several: whether the prompts came as a list.
        n: the number of samples per prompt; None for one sample without a list.
    """

    several: bool
    n: int | None

    @property
    def is_list(self) -> bool:
        """True if the call returns a list."""
        return self.several or self.n is not None

    def of(self, outcomes: Sequence[Any], labels: Sequence[PromptLabel]) -> Answers[Any]:
        """Return the outcomes, ordered by prompt and then by sample, in this shape; `labels` has one per prompt."""
        if self.n is None:
            return Answers(outcomes, labels)
        groups = [
            Answers(outcomes[at : at + self.n], [prompt] * self.n)
            for prompt, at in zip(labels, range(0, len(outcomes), self.n), strict=True)
        ]
        return Answers(groups, labels) if self.several else groups[0]


class BatchRun:
    """Submitted requests of one batch, ordered by prompt and then by sample.

    Args:
        labels: the label of each prompt in tables.
        shape: the shape of the result.
        requests: the request of each sample, or the error of a bad prompt.
        errors: "raise" raises the first failure; "return" returns each failure in its place.
        keeps_cancelled: whether a cancelled request counts as a partial generation instead of a failure.

    Attributes:
        labels, requests: as above.
        ends: the indices of ended requests in order of completion, bad prompts first. Closed once all requests have
            ended or, if failures are raised, after the first failure.
        failed: the index of the first failure, if failures are raised.
    """

    def __init__(
        self,
        labels: Sequence[PromptLabel],
        shape: Shape,
        requests: Sequence[Handle | Exception],
        errors: Errors,
        *,
        keeps_cancelled: bool = False,
    ):
        self.labels, self._shape, self.requests, self._errors = labels, shape, requests, errors
        self._keeps_cancelled = keeps_cancelled
        self._cancelled: dict[int, Generation] = {}
        self.failed: int | None = None
        self.ends: Feed[int] = Feed()
        for place, each in enumerate(requests):
            if isinstance(each, Exception):
                self._ended(place)
        for place, each in enumerate(requests):
            if isinstance(each, Handle):
                each.record.pieces.when_closed(partial(self._ended, place))
        if not requests:
            self.ends.close()

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def handles(self) -> list[Handle]:
        """Handles of the submitted requests."""
        return [each for each in self.requests if isinstance(each, Handle)]

    def outcome(self, place: int) -> Outcome | None:
        """Return the outcome of a request; None if it has not ended."""
        each = self.requests[place]
        if isinstance(each, Exception):
            return each
        outcome = each.record.outcome
        if not self._keeps_cancelled or not isinstance(outcome, RequestCancelled):
            return outcome
        if place not in self._cancelled:  # only once, because its elapsed time would change
            self._cancelled[place] = each.record.so_far()
        return self._cancelled[place]

    def answers(self) -> Answers[Any]:
        """Return the outcomes of all requests; None for each unfinished one.

        Raises:
            BatchFailed: a request has failed, and failures are raised.
        """
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        outcomes = [self.outcome(place) for place in range(len(self))]
        if self.failed is None:
            return self._shape.of(outcomes, self.labels)
        error, finished = outcomes[self.failed], sum(isinstance(outcome, Generation) for outcome in outcomes)
        assert isinstance(error, Exception)
        raise BatchFailed(
            f"request {self.failed} of {len(outcomes)} failed: {error}. Its error is the cause of this error; "
            f"{finished} others had finished and are in `results` of this error, and the rest were cancelled. "
            'errors="return" returns errors in place and continues',
            self._shape.of(outcomes, self.labels),
        ) from error

    def so_far(self) -> Answers[Any]:
        """Return the outcomes of all requests, with a partial generation for each unfinished one."""
        outcomes = [self.outcome(place) for place in range(len(self))]
        partial_outcomes = [
            each.record.so_far()
            if isinstance(each, Handle) and isinstance(outcome, RequestCancelled | None)
            else outcome
            for each, outcome in zip(self.requests, outcomes, strict=True)
        ]
        return self._shape.of(partial_outcomes, self.labels)

    def cancel(self) -> None:
        """Cancel all unfinished requests."""
        for handle in self.handles:
            handle.cancel()

    def leave(self, error: BaseException) -> None:
        """Attach the answers so far to an interrupt."""
        ended = sum(isinstance(each, Handle) and each.generation is not None for each in self.requests)
        done = f"{ended} of {quantity(len(self.requests), 'request')}"
        words = (
            f"interrupted when {done} had ended; `finished` of this error has their answers, and the texts so far of "
            "the others"
        )
        interrupts.tell(error, words, "finished", self.so_far())

    def _ended(self, place: int) -> None:
        """Record the end of a request; thread-safe."""
        if self.ends.closed:
            return
        if self._errors == "raise" and self._has_failed(place) and self.failed is None:
            self.failed = place
        self.ends.put(place)
        if self.failed is not None or len(self.ends.items) == len(self.requests):
            self.ends.close()

    def _has_failed(self, place: int) -> bool:
        """Return True if an ended request failed, without parsing its answer."""
        each = self.requests[place]
        error = each if isinstance(each, Exception) else each.record.error
        return error is not None and not (self._keeps_cancelled and isinstance(error, RequestCancelled))


def submit_each(
    submits: Iterable[Callable[[], Handle | Exception]], run: Callable[[Sequence[Handle | Exception]], BatchRun]
) -> Waits[BatchRun]:
    """Submit requests, with pauses for other tasks, and return their run; an error cancels those submitted so far.

    Args:
        submits: each submits a request, or returns the error in its place.
        run: returns the run of all.
    """
    requests: list[Handle | Exception] = []
    try:
        for place, submit in enumerate(submits, 1):
            if place % AT_ONCE == 0:
                yield from pause()
            requests.append(submit())
        return run(requests)
    except BaseException:
        for each in requests:
            if isinstance(each, Handle):
                each.cancel()
        raise
