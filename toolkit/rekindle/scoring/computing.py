"""Batches of requests for scores or hidden states of prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rekindle.client.batches.run import BatchRun, Shape, submit_each
from rekindle.client.handle import Handle
from rekindle.client.requests import Requests
from rekindle.core.concurrency import interrupts
from rekindle.core.concurrency.progress import Progress
from rekindle.core.concurrency.waits import Waits
from rekindle.core.messages import PicturedTokens
from rekindle.core.request.tokens import TokenLogprob
from rekindle.notebook.progress.batch_progress import draw_progress
from rekindle.results.facts.settings import SamplingParams
from rekindle.results.generation import Generation


@dataclass(frozen=True, slots=True)
class ScoringBar:
    """Progress bar of a call, drawn after a second.

    Attributes:
        stage: the activity, such as "embedding".
        unit: the unit of progress, such as "texts".
        enabled: whether the bar is drawn.
    """

    stage: str
    unit: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """Sequence of tokens; its last tokens are scored.

    Attributes:
        token_ids: all tokens of the sequence.
        first: the index of the first scored token, at least 1.
    """

    token_ids: tuple[int, ...]
    first: int


def wait_all(run: BatchRun, bar: ScoringBar) -> Waits[list[Handle]]:
    """Wait for all requests, and return their handles. Leaving the wait cancels the unfinished requests.

    Raises:
        RekindleError: the error of the first failed request; the others are cancelled.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    try:
        yield from draw_progress(
            run.ends,
            lambda: Progress(bar.stage, len(run.ends.items), len(run), bar.unit),
            enabled=bar.enabled and len(run) > 1,
        )
        if run.failed is not None:
            run.handles[run.failed].record.result()
        return run.handles
    except BaseException as error:
        done = f"{len(run.ends.items)} of {len(run)} {bar.unit}"
        interrupts.say(error, f"interrupted when {done} had ended")
        raise
    finally:
        run.cancel()


def compute_all(
    requests: Requests, prompts: Sequence[tuple[tuple[int, ...] | PicturedTokens, SamplingParams]], bar: ScoringBar
) -> Waits[list[Generation]]:
    """Submit a request for each (prompt, parameters); wait for all, and return their generations.

    Leaving the wait cancels the unfinished requests.
    """
    __tracebackhide__ = True
    submits = [partial(requests.compute, prompt, params) for prompt, params in prompts]
    labels = [prompt if isinstance(prompt, tuple) else prompt.ids for prompt, _ in prompts]
    run = yield from submit_each(submits, partial(BatchRun, labels, Shape(True, None), errors="raise"))
    return [handle.record.result() for handle in (yield from wait_all(run, bar))]


def score_all(
    requests: Requests,
    sequences: Sequence[ScoredSequence],
    bar: ScoringBar,
    cache_salt: str = "",
    adapter: str | None = None,
) -> Waits[list[Generation]]:
    """Score sequences of tokens: return generations with `prompt_logprobs` from each sequence's `first` on.

    Tokens before `first` may come from the prefix cache, so sequences with a common beginning share its computation.
    """
    params = [
        SamplingParams(
            max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=each.first, cache_salt=cache_salt, adapter=adapter
        )
        for each in sequences
    ]
    prompts = [(each.token_ids, each_params) for each, each_params in zip(sequences, params, strict=True)]
    return compute_all(requests, prompts, bar)


def scores_of(generation: Generation) -> tuple[TokenLogprob, ...]:
    """Return the scores of a generation of `score_all`."""
    return tuple(score for score in generation.prompt_logprobs or () if score is not None)
