"""Several requests as one call: all are checked before one is computed, and no finished answer is lost."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rekindle.concurrency import interrupts
from rekindle.concurrency.feed import Feed
from rekindle.concurrency.waits import Wait, Waits, in_a_thread
from rekindle.engine.preparing import Preparer
from rekindle.errors import BatchFailed, InvalidBatch, InvalidRequest
from rekindle.markup import counted
from rekindle.messages import Prompt
from rekindle.request import SamplingParams, check_length
from rekindle.results.generation import Generation
from rekindle.session.calls.handle import Handle

Errors = Literal["raise", "return"]
"""What a batch does with the error of one of its requests."""
Outcome = Generation | Exception
"""A generation, or the error in its place. That may be one of the model's own chat template."""
NAMED = 10
"""How many bad prompts a message names."""


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

    def of(self, results: Sequence[Any]) -> Any:
        """Return the results in this shape; they come draw by draw of each prompt."""
        if self.n is None:
            return list(results) if self.several else results[0]
        groups = [list(results[at : at + self.n]) for at in range(0, len(results), self.n)]
        return groups if self.several else groups[0]


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are made together.

    Attributes:
        prompts: each, or the error for which it cannot be one.
        variants: the parameters of each draw of a prompt.
        shape: that of what is returned.
        errors: whether an error is raised, or returned in the place of its request.
        preparer: tokenizes the prompts.
        submit: makes a request of token ids.
    """

    prompts: Sequence[Prompt | Exception]
    variants: Sequence[SamplingParams]
    shape: Shape
    errors: Errors
    preparer: Preparer
    submit: Callable[[tuple[int, ...], SamplingParams], Handle]

    def ended(self) -> Waits[Any]:
        """Check all prompts, then wait for all requests. Leaving the wait in any way cancels those that run."""
        __tracebackhide__ = True  # a cell shows errors without such frames
        prompts = yield from self._checked()
        bad = {index: prompt for index, prompt in enumerate(prompts) if isinstance(prompt, Exception)}
        if bad and self.errors == "raise":
            raise InvalidBatch(_named(bad, len(prompts)), bad) if self.shape.several else bad[0]
        made: list[Handle | Exception] = []
        try:
            for prompt in prompts:
                made += [prompt if isinstance(prompt, Exception) else self.submit(prompt, v) for v in self.variants]
            ends = _Ends((each for each in made if isinstance(each, Handle)), at_first_failure=self.errors == "raise")
            yield Wait(ends.over)
            results = [_outcome(each) for each in made]
        except BaseException as left:
            self._leave(left, made)
            raise
        finally:
            for each in made:
                if isinstance(each, Handle):
                    each.cancel()
        if ends.failed is not None:
            raise self._failed(made.index(ends.failed), results)
        return self.shape.of(results)

    def _checked(self) -> Waits[list[tuple[int, ...] | Exception]]:
        """Tokenize and check all prompts, in a thread unless there is nothing to tokenize."""
        stopped = threading.Event()
        if all(isinstance(prompt, tuple | Exception) for prompt in self.prompts):
            return self._check(stopped)
        return (yield from in_a_thread(partial(self._check, stopped), "batch", stopped.set))

    def _check(self, stopped: threading.Event) -> list[tuple[int, ...] | Exception]:
        """Return the tokens of each prompt, or the error for which it cannot be served.

        Args:
            stopped: set once nobody waits for this any more.
        """
        self.preparer.check(self.variants[0])
        shared: dict[int, int] = {}  # one object for each token, because a new one for each place would take 32 bytes
        checked: list[tuple[int, ...] | Exception] = []
        for prompt in self.prompts:
            if stopped.is_set():
                break
            try:
                checked.append(self._token_ids(prompt, shared))
            except Exception as error:  # any error, be it of the model's own chat template, is one prompt's
                checked.append(error)
        return checked

    def _token_ids(self, prompt: Prompt | Exception, shared: dict[int, int]) -> tuple[int, ...]:
        if isinstance(prompt, Exception):
            raise prompt
        ids = prompt if isinstance(prompt, tuple) else self.preparer.token_ids(prompt)
        check_length(ids, self.preparer.capacity)
        return tuple(map(shared.setdefault, ids, ids))

    def _leave(self, left: BaseException, made: Sequence[Handle | Exception]) -> None:
        """Have an interrupt say what had ended, if all requests were made."""
        if len(made) < len(self.prompts) * len(self.variants):
            return
        answers = [each.generation if isinstance(each, Handle) else None for each in made]
        done = f"{sum(answer is not None for answer in answers)} of {counted(len(answers), 'request')}"
        words = f"interrupted when {done} had ended; their answers are in `finished` of this error"
        interrupts.tell(left, words, "finished", self.shape.of(answers))

    def _failed(self, place: int, results: Sequence[Outcome | None]) -> Exception:
        error, finished = results[place], sum(isinstance(result, Generation) for result in results)
        assert isinstance(error, Exception)
        failed = BatchFailed(
            f"request {place} of {len(results)} failed: {error}. Its error is the cause of this one; {finished} others "
            'had ended and are in results of this error, and the rest were cancelled. errors="return" goes on instead',
            self.shape.of(results),
        )
        failed.__cause__ = error
        return failed


class _Ends:
    """The ends of some requests, as they come.

    Attributes:
        over: closed once all have ended or, if that is asked for, one has failed.
        failed: the first that failed, if that is asked for.
    """

    def __init__(self, handles: Iterable[Handle], *, at_first_failure: bool):
        self.over: Feed[None] = Feed()
        self.failed: Handle | None = None
        self._at_first_failure = at_first_failure
        waited = dict(enumerate(handles))
        self._left = set(waited)
        for number, handle in waited.items():
            handle.record.pieces.when_closed(partial(self._ended, number, handle))
        if not waited:
            self.over.close()

    def _ended(self, number: int, handle: Handle) -> None:
        """Take note of an end; several threads may do so at once."""
        self._left.discard(number)
        if self._at_first_failure and handle.generation is None and self.failed is None and not self.over.closed:
            self.failed = handle
        if self.failed is not None or not self._left:
            self.over.close()


def check_errors(errors: object, shape: Shape) -> None:
    """Check what a call is to do with errors.

    Raises:
        InvalidRequest: it is neither of the two, or errors are to be returned where no list is.
    """
    if errors not in ("raise", "return"):
        raise InvalidRequest(f'errors must be "raise" or "return", got {errors!r:.80}')
    if errors == "return" and not shape.listed:
        raise InvalidRequest(
            'errors="return" puts an error in its place in a list, and one generation comes without a list: '
            "give a list of prompts, or n"
        )


def _outcome(made: Handle | Exception) -> Outcome | None:
    """Return what came of a request; None if it has not ended."""
    if isinstance(made, Exception):
        return made
    return made.record.outcome


def _named(bad: Mapping[int, Exception], total: int) -> str:
    lines = [f"prompt {index}: {error}" for index, error in list(bad.items())[:NAMED]]
    more = [f"and {len(bad) - NAMED} more"] if len(bad) > NAMED else []
    which = f"{len(bad)} of {total} prompts" if total > 1 else "the only prompt"
    return "\n  ".join([f"{which} cannot be served, and nothing was computed:", *lines, *more])
