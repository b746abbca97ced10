"""Answers to typed questions about a state: the probabilities of labels as the next token."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, overload

from rekindle.client.requests import HasRequests, Requests
from rekindle.core.concurrency.waits import Wait, Waits, in_a_thread
from rekindle.core.errors import InvalidRequest
from rekindle.core.request import checks
from rekindle.core.request.params import LONGEST_SALT
from rekindle.results.facts.settings import SamplingParams
from rekindle.results.generation import Generation
from rekindle.results.scores.decision import Decision, Decisions
from rekindle.results.scores.questions import Question
from rekindle.scoring.computing import ScoringBar, compute_all
from rekindle.scoring.decision_prompts import Reading, readings_of

LITTLE: Final = 0.5
"""Least probability of all labels together without a note."""
FORM: Final = (
    "The labels of a question have together less than half of the probability: this model would rather write something "
    "else than one of them, so its decisions say little. This note appears once per session."
)


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
    single, several = isinstance(questions, Question), _questions(questions)
    bar = ScoringBar("deciding", "questions", requests.draws_progress(progress))
    requests.check_predicts()
    salt, own = checks.text("cache_salt", cache_salt, LONGEST_SALT), requests.adapter(adapter)
    variables = dict(chat_template_kwargs or {})
    requests.check_engine()
    engine = requests.loaded_engine
    form = engine.checkpoint.uses.decisions
    readings = yield from in_a_thread(partial(readings_of, engine.preparer, form, state, several, variables), "decide")
    answers = yield from _answers(requests, readings, salt, own, bar)
    decisions = [_decision(*each) for each in zip(several, readings, answers, strict=True)]
    if any(each.mass < LITTLE for each in decisions):
        requests.note_once("decide", FORM)
    return decisions[0] if single else Decisions(tuple(decisions))


def _questions(questions: Any) -> Sequence[Question]:
    """Return the questions of a call.

    Raises:
        InvalidRequest: there is no question, or something else.
    """
    several = [questions] if isinstance(questions, Question) else questions
    if not checks.is_sequence(several) or not several or not all(isinstance(each, Question) for each in several):
        wrong = next((each for each in several if not isinstance(each, Question)), several) if several else several
        raise InvalidRequest(
            "questions must be a rekindle.Choice, rekindle.YesNo or rekindle.Score, or a list of them, got "
            f"{checks.preview(wrong)}"
        )
    return list(several)


def _answers(
    requests: Requests, readings: Sequence[Reading], salt: str, adapter: str | None, bar: ScoringBar
) -> Waits[list[list[Generation]]]:
    """Return the generations with the labels of each reading. The common beginning of all prompts is computed once."""
    __tracebackhide__ = True
    limits = requests.loaded_engine.limits
    most = max(1, limits.max_logprobs)
    parts = [[each.labels[i : i + most] for i in range(0, len(each.labels), most)] for each in readings]
    prompts = [
        (reading.token_ids, _params(labels, limits.max_logprobs, salt, adapter))
        for reading, groups in zip(readings, parts, strict=True)
        for labels in groups
    ]
    shared = _shared([each.token_ids for each in readings])
    prefix = None
    if limits.prefix_cache and len(prompts) > 1 and len(shared) >= limits.pool.page_size:
        prefix = requests.continuing(shared, salt, adapter).hold(shared)
    try:
        if prefix is not None:
            yield Wait(prefix.record.pieces)
            prefix.record.result()
        answers = iter((yield from compute_all(requests, prompts, bar)))
    finally:
        if prefix is not None:
            prefix.cancel()
            prefix.withdraw()
    return [[next(answers) for _ in groups] for groups in parts]


def _params(labels: Sequence[int], most: int, salt: str, adapter: str | None) -> SamplingParams:
    return SamplingParams(
        allowed_token_ids=frozenset(labels),
        max_tokens=1,
        ignore_eos=True,
        logprobs=min(len(labels), most),
        logprobs_of="allowed",
        cache_salt=salt,
        adapter=adapter,
    )


def _shared(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common beginning of prompts."""
    first, last = min(prompts), max(prompts)  # the other prompts are between these two in order
    pairs = enumerate(zip(first, last, strict=False))
    end = next((place for place, (one, other) in pairs if one != other), min(len(first), len(last)))
    return first[:end]


def _decision(question: Question, reading: Reading, answers: Sequence[Generation]) -> Decision:
    """Return the decision by the model's log-probabilities of the labels, softmax(logprob / temperature)."""
    scores = [score for each in answers for token in each.logprobs or () for score in (token, *token.top)]
    by_token = {score.token_id: score.logprob for score in scores}
    logprobs = [by_token[label] for label in reading.labels]
    scaled = [(logprob - max(logprobs)) / reading.temperature for logprob in logprobs]
    total = math.fsum(map(math.exp, scaled))
    shares = [math.exp(each) / total for each in scaled]
    mass = min(1.0, math.fsum(map(math.exp, logprobs)))
    first, rank = answers[0], min(token.rank for each in answers for token in each.logprobs or ())
    return Decision(
        question,
        dict(zip(question.names, shares, strict=True)),
        mass,
        rank,
        first.usage.prompt_tokens,
        first.cached_tokens,
    )
