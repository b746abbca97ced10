"""Several requests as one call: all are checked before one is computed, and no finished answer is lost."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rekindle.client.batches.run import BatchRun, Errors, Shape
from rekindle.client.drawing import Watch, until_over
from rekindle.client.handle import Handle
from rekindle.client.prompts import ToolSchemas, tools_in
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.engine.preparing import Preparer
from rekindle.core.errors import InvalidBatch, InvalidRequest
from rekindle.core.messages import Prompt
from rekindle.core.request.checks import boolean
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import check_length
from rekindle.results.answer_table import PromptLabel
from rekindle.results.answers import Answers

NAMED = 10
"""How many bad prompts a message names."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are made together.

    Attributes:
        prompts: each, or the error for which it cannot be one.
        asked: what a table shows of each prompt.
        variants: the parameters of each draw of a prompt.
        shape: that of what is returned.
        errors: whether an error is raised, or returned in the place of its request.
        preparer: tokenizes the prompts.
        submit: makes a request; it is told of the tools of a conversation.
    """

    prompts: Sequence[Prompt | Exception]
    asked: Sequence[PromptLabel]
    variants: Sequence[SamplingParams]
    shape: Shape
    errors: Errors
    preparer: Preparer
    submit: Callable[[Prompt, SamplingParams, ToolSchemas | None], Handle]

    def __len__(self) -> int:
        return len(self.prompts) * len(self.variants)

    def ended(self, watch: Watch = until_over, *, keeps_cancelled: bool = False) -> Waits[Answers[Any]]:
        """Check all prompts, then wait for all requests. Leaving the wait in any way cancels those that run.

        Args:
            watch: waits for the batch.
            keeps_cancelled: see `BatchRun`.
        """
        __tracebackhide__ = True  # a cell shows errors without such frames
        run = yield from self.begun(keeps_cancelled=keeps_cancelled)
        try:
            yield from watch(run)
            return run.answers()
        except BaseException as left:
            run.leave(left)
            raise
        finally:
            run.cancel()

    def submitted(self) -> Waits[list[Handle]]:
        """Check all prompts, make all requests, and return them without waiting for what comes of them."""
        __tracebackhide__ = True
        run = yield from self.begun()
        return run.handles

    def begun(self, *, keeps_cancelled: bool = False) -> Waits[BatchRun]:
        """Check all prompts, and make all requests.

        Args:
            keeps_cancelled: see `BatchRun`.

        Raises:
            InvalidRequest: some cannot be served, and errors are raised; nothing was computed.
        """
        __tracebackhide__ = True
        prompts = yield from self._checked()
        bad = {index: prompt for index, prompt in enumerate(prompts) if isinstance(prompt, Exception)}
        if bad and self.errors == "raise":
            raise InvalidBatch(_named(bad, len(prompts)), bad) if self.shape.several else bad[0]
        made: list[Handle | Exception] = []
        try:
            for given, prompt in zip(self.prompts, prompts, strict=True):
                if isinstance(prompt, Exception):
                    made += [prompt] * len(self.variants)
                else:
                    made += [self.submit(prompt, variant, tools_in(given)) for variant in self.variants]
            return BatchRun(self.asked, self.shape, made, self.errors, keeps_cancelled=keeps_cancelled)
        except BaseException:
            for each in made:
                if isinstance(each, Handle):
                    each.cancel()
            raise

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
        check_length(ids, self.preparer.capacity, self.variants[0].max_tokens != 0)
        return tuple(map(shared.setdefault, ids, ids))


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


def check_progress(progress: object, shape: Shape) -> None:
    """Check whether a call may draw its progress.

    Raises:
        InvalidRequest: it is no bool, or there is to be a bar where no list is returned.
    """
    if progress is not None and boolean("progress", progress) and not shape.listed:
        raise InvalidRequest(
            "progress=True draws how many answers of a list have ended: give a list of prompts, or n; "
            "session.show() shows one generation as it comes"
        )


def _named(bad: Mapping[int, Exception], total: int) -> str:
    lines = [f"prompt {index}: {error}" for index, error in list(bad.items())[:NAMED]]
    more = [f"and {len(bad) - NAMED} more"] if len(bad) > NAMED else []
    which = f"{len(bad)} of {total} prompts" if total > 1 else "the only prompt"
    return "\n  ".join([f"{which} cannot be served, and nothing was computed:", *lines, *more])
