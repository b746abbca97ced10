"""Answers to typed questions about a state: the probabilities of labels as the next token."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, overload

from rekindle.client.requests import HasRequests
from rekindle.core.concurrency.waits import Wait, Waits, in_a_thread
from rekindle.results.generation import Generation
from rekindle.results.scores.decision import Decision, Decisions
from rekindle.results.scores.questions import Question
from rekindle.scoring.computing import ScoringBar, compute_all
from rekindle.scoring.decision_call import DecisionCall, check_questions
from rekindle.scoring.decision_prompts import AnswerPlace


@overload
def decide(
    session: HasRequests,
    state: Any,
    questions: Question,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Decision]: ...
@overload
def decide(
    session: HasRequests,
    state: Any,
    questions: Sequence[Question],
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Decisions]: ...
def decide(
    session: HasRequests,
    state: Any,
    questions: Question | Sequence[Question],
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    cache_salt: str = "",
    adapter: str | None = None,
    progress: bool | None = None,
) -> Waits[Any]:
    """Answer typed questions about a state by the probabilities of the options. No text is generated.

    A question takes one step: the prompt has the state, the question and the options with labels, and the answer is
    the distribution of the next token over the labels. The full pages of the state are computed once for all questions.
    The prompts are those of the decision pipeline of transformers; `decision.json` and `decision_template.jinja` in a
    model's directory replace the form.

    The call waits for all questions, and for room in the waiting queue. Leaving the wait early cancels its requests.

    Args:
        state: the subject of the questions: a text, or a conversation or other JSON, for the model in JSON.
        questions: a `rekindle.Choice`, `rekindle.YesNo` or `rekindle.Score`, or a list of them.
        chat_template_kwargs: additional variables of the chat template. The default of `enable_thinking` is False here.
        cache_salt, adapter: as in `SamplingParams`.
        progress: whether to draw a progress bar for a call that takes longer than a second. The default is the
            `progress` of `open`.

    Returns:
        A `rekindle.Decision`; for a list of questions, `rekindle.Decisions`.

    Raises:
        InvalidRequest: a question has another type, the model has no chat template, or a label is not one token.
        SessionError: the session is closed or its engine failed.
    """
    __tracebackhide__ = True  # hides this frame from notebook tracebacks
    requests = session._requests
    several = check_questions(questions)
    bar = ScoringBar("deciding", "questions", requests.draws_progress(progress))
    call = DecisionCall.of(requests, several, chat_template_kwargs, cache_salt, adapter)
    readings = yield from in_a_thread(partial(call.readings, state), "decide")
    answers = yield from _answers(call, readings, bar)
    decisions = call.decisions(readings, iter(answers))
    return decisions[0] if isinstance(questions, Question) else decisions


def _answers(call: DecisionCall, readings: Sequence[AnswerPlace], bar: ScoringBar) -> Waits[list[Generation]]:
    """Return the answers to the prompts of all readings. The common beginning of the prompts is computed once."""
    __tracebackhide__ = True
    requests, limits = call.requests, call.requests.engine.facts.limits
    prompts = [prompt for group in call.prompts(readings) for prompt in group]
    shared = _shared([each.token_ids for each in readings])
    prefix = None
    if limits.prefix_cache and len(prompts) > 1 and len(shared) >= limits.pool.page_size:
        prefix = requests.continuing(shared, call.salt, call.adapter).hold(shared)
    try:
        if prefix is not None:
            yield Wait(prefix.record.pieces)
            prefix.record.result()
        return (yield from compute_all(requests, prompts, bar))
    finally:
        if prefix is not None:
            prefix.cancel()
            prefix.withdraw()


def _shared(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common beginning of prompts."""
    first, last = min(prompts), max(prompts)  # the other prompts are between these two in order
    pairs = enumerate(zip(first, last, strict=False))
    end = next((place for place, (one, other) in pairs if one != other), min(len(first), len(last)))
    return first[:end]
