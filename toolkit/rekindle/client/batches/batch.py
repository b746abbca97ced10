"""Batch of requests: all prompts are checked before the first is computed, and finished answers are never lost."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rekindle.client.batches.drawing import Watch, until_over
from rekindle.client.batches.run import BatchRun, Errors, Shape, submit_each
from rekindle.client.handle import Handle
from rekindle.core.concurrency.waits import Waits, in_a_thread
from rekindle.core.errors import InvalidBatch, InvalidRequest
from rekindle.core.messages import PicturedTokens, Prompt
from rekindle.core.request.checks import boolean
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.request import check_length
from rekindle.results.answer_table import PromptLabel
from rekindle.results.answers import Answers

if TYPE_CHECKING:
    from rekindle.assembly.preparing.preparer import Preparer

QUICK = 4096
"""Tokens checked in less than a millisecond."""
MAX_LISTED = 10
"""Maximum number of bad prompts listed in an error message."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests submitted in one call.

    Attributes:
        prompts: the prompts; errors replace bad prompts.
        labels: the label of each prompt in tables.
        variants: the sampling parameters of each sample of a prompt.
        shape: the shape of the result.
        errors: "raise" raises the first error; "return" returns each error in the place of its generation.
        preparer: tokenizes the prompts.
        submit: submits a request with the tokens and images of its prompt, its parameters, and the prompt itself.
        name_of: returns the name of a prompt in errors, by its index.
    """

    prompts: Sequence[Prompt | Exception]
    labels: Sequence[PromptLabel]
    variants: Sequence[SamplingParams]
    shape: Shape
    errors: Errors
    preparer: "Preparer"
    submit: Callable[[Prompt, SamplingParams, Prompt], Handle]
    name_of: Callable[[int], str] = "prompt {}".format

    def __len__(self) -> int:
        return len(self.prompts) * len(self.variants)

    def wait_ended(self, watch: Watch = until_over, *, keeps_cancelled: bool = False) -> Waits[Answers[Any]]:
        """Check all prompts, then submit and await all requests. Leaving the wait cancels the unfinished requests.

        Args:
            watch: returns the operation that waits for the batch.
            keeps_cancelled: see `BatchRun`.
        """
        __tracebackhide__ = True  # hides this frame from notebook tracebacks
        run = yield from self.start(keeps_cancelled=keeps_cancelled)
        try:
            yield from watch(run)
            return run.answers()
        except BaseException as error:
            run.leave(error)
            raise
        finally:
            run.cancel()

    def submit_all(self) -> Waits[list[Handle]]:
        """Check all prompts, submit all requests, and return their handles."""
        __tracebackhide__ = True
        run = yield from self.start()
        return run.handles

    def start(self, *, keeps_cancelled: bool = False) -> Waits[BatchRun]:
        """Check all prompts, and submit all requests.

        Args:
            keeps_cancelled: see `BatchRun`.

        Raises:
            InvalidRequest: some prompts are bad and `errors` is "raise"; no request was submitted.
        """
        __tracebackhide__ = True
        prompts = yield from self._checked()
        bad = {index: prompt for index, prompt in enumerate(prompts) if isinstance(prompt, Exception)}
        if bad and self.errors == "raise":
            raise invalid_batch(bad, len(prompts), self.name_of) if self.shape.several else bad[0]
        submits = [
            partial(self._submitted, untokenized, prompt, variant)
            for untokenized, prompt in zip(self.prompts, prompts, strict=True)
            for variant in self.variants
        ]
        run = partial(BatchRun, self.labels, self.shape, errors=self.errors, keeps_cancelled=keeps_cancelled)
        return (yield from submit_each(submits, run))

    def _submitted(
        self, untokenized: Prompt | Exception, prompt: Prompt | Exception, variant: SamplingParams
    ) -> Handle | Exception:
        """Submit a request, or return the error of a bad prompt."""
        if isinstance(prompt, Exception):
            return prompt
        assert not isinstance(untokenized, Exception), "a bad prompt has no tokens"
        return self.submit(prompt, variant, untokenized)

    def _checked(self) -> Waits[list[Prompt | Exception]]:
        """Tokenize and check all prompts, in a thread if there is text to tokenize, or many tokens."""
        stopped = threading.Event()
        tokens = sum(len(prompt) if isinstance(prompt, tuple) else QUICK for prompt in self.prompts)
        if tokens < QUICK:
            return self._check(stopped)
        return (yield from in_a_thread(partial(self._check, stopped), "batch", stopped.set))

    def _check(self, stopped: threading.Event) -> list[Prompt | Exception]:
        """Return the tokens and images of each prompt, or the error of a bad one.

        Args:
            stopped: set once the caller no longer waits for the result.
        """
        self.preparer.check(self.variants[0])
        shared: dict[int, int] = {}  # shares one int per token id; a new int per position would cost 32 bytes
        checked: list[Prompt | Exception] = []
        for prompt in self.prompts:
            if stopped.is_set():
                break
            try:
                checked.append(self._token_ids(prompt, shared, stopped))
            except Exception as error:  # a chat template may raise any error, for this prompt alone
                checked.append(error)
        return checked

    def _token_ids(self, prompt: Prompt | Exception, shared: dict[int, int], stopped: threading.Event) -> Prompt:
        if isinstance(prompt, Exception):
            raise prompt
        if isinstance(prompt, tuple):  # checked already
            whole = self.preparer.prompts.cut(PicturedTokens(prompt, ()), self.variants[0])
        else:
            whole = self.preparer.prompts.read(prompt, self.variants[0], stopped.is_set)
        check_length(whole.ids, self.preparer.prompts.capacity, self.variants[0].max_tokens != 0)
        ids = tuple(map(shared.setdefault, whole.ids, whole.ids))
        return replace(whole, ids=ids) if whole.pictures else ids


def check_errors(errors: object, shape: Shape) -> None:
    """Check the `errors` option of a call.

    Raises:
        InvalidRequest: `errors` is unknown, or is "return" for a call with a single result.
    """
    if errors not in ("raise", "return"):
        raise InvalidRequest(f'errors must be "raise" or "return", got {errors!r:.80}')
    if errors == "return" and not shape.is_list:
        raise InvalidRequest(
            'errors="return" puts each error in its place in a list, but this call returns a single generation: give a '
            "list of prompts, or n"
        )


def check_progress(progress: object, shape: Shape) -> None:
    """Check the `progress` option of a call.

    Raises:
        InvalidRequest: `progress` is not a bool, or is True for a call with a single result.
    """
    if progress is not None and boolean("progress", progress) and not shape.is_list:
        raise InvalidRequest(
            "progress=True draws the number of finished answers of a list: give a list of prompts, or n; "
            "session.show() shows one generation as it arrives"
        )


def invalid_batch(bad: Mapping[int, Exception], total: int, name_of: Callable[[int], str]) -> InvalidBatch:
    """Return the error for the bad prompts of a batch, by index; `name_of` returns the name of a prompt."""
    lines = [f"{name_of(index)}: {error}" for index, error in list(bad.items())[:MAX_LISTED]]
    more = [f"and {len(bad) - MAX_LISTED} more"] if len(bad) > MAX_LISTED else []
    subject = f"{len(bad)} of {total} prompts" if total > 1 else "the only prompt"
    message = "\n  ".join([f"{subject} cannot be served, and nothing was computed:", *lines, *more])
    return InvalidBatch(message, bad, total)
