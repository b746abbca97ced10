"""Requests that are computed for what they say of their prompts, and waited for together."""

from collections.abc import Sequence
from dataclasses import dataclass

from rekindle.client.batches.run import BatchRun, Shape
from rekindle.client.handle import Handle
from rekindle.client.requests import Requests
from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Waits
from rekindle.core.request.params import SamplingParams
from rekindle.core.request.tokens import TokenLogprob
from rekindle.notebook.batch_progress import drawn
from rekindle.results.generation import Generation


@dataclass(frozen=True, slots=True)
class ScoringBar:
    """The progress bar of a call that takes longer than a second.

    Attributes:
        stage: what is being done, as in "embedding".
        unit: what is counted, as in "texts".
        drawn: whether anything is drawn.
    """

    stage: str
    unit: str
    drawn: bool


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """A sequence of tokens whose end is to be scored.

    Attributes:
        token_ids: all of its tokens.
        first: the index of the first that is scored, from 1 on.
    """

    token_ids: tuple[int, ...]
    first: int


def ended(run: BatchRun, bar: ScoringBar) -> Waits[list[Handle]]:
    """Wait for all requests, and return them. Leaving the wait cancels those that run.

    Raises:
        RekindleError: that of the first that failed; the others are cancelled.
    """
    __tracebackhide__ = True  # a cell shows errors without such frames
    try:
        yield from drawn(
            run.ends,
            lambda: Progress(bar.stage, len(run.ends.items), len(run), bar.unit),
            enabled=bar.drawn and len(run) > 1,
        )
        if run.failed is not None:
            run.handles[run.failed].record.result()
        return run.handles
    except BaseException as left:
        done = f"{len(run.ends.items)} of {len(run)} {bar.unit}"
        interrupts.say(left, f"interrupted when {done} had ended")
        raise
    finally:
        run.cancel()


def computed(
    requests: Requests, asked: Sequence[tuple[tuple[int, ...], SamplingParams]], bar: ScoringBar
) -> Waits[list[Generation]]:
    """Make a request of each prompt with its parameters, and return what came of them."""
    __tracebackhide__ = True
    made: list[Handle] = []
    try:
        for prompt, params in asked:
            made.append(requests.compute(prompt, params))
    except BaseException:
        for handle in made:
            handle.cancel()
        raise
    run = BatchRun([prompt for prompt, _ in asked], Shape(True, None), made, "raise")
    handles = yield from ended(run, bar)
    return [handle.record.result() for handle in handles]


def scored(
    requests: Requests, asked: Sequence[ScoredSequence], bar: ScoringBar, cache_salt: str = ""
) -> Waits[list[Generation]]:
    """Compute sequences of tokens; the `prompt_logprobs` of each have its scores from its `first` on.

    What stands before is found in the prefix cache where it can be, so sequences that begin alike share that work.
    """
    params = [
        SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=each.first, cache_salt=cache_salt)
        for each in asked
    ]
    return computed(requests, [(each.token_ids, own) for each, own in zip(asked, params, strict=True)], bar)


def scores_of(generation: Generation) -> tuple[TokenLogprob, ...]:
    """Return the scores of a request that was made by `scored`."""
    return tuple(score for score in generation.prompt_logprobs or () if score is not None)
