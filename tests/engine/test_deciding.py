"""Decisions equal the softmax of a forward pass over their labels, in whatever company they are computed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rekindle
from rekindle import Choice, Decision, Score, YesNo
from rekindle.results.scores.questions import Question
from rekindle.scoring.decision_prompts import readings_of
from tests.engine.small import SMOLLM2

pytestmark = pytest.mark.wide

STATE = "I was charged twice for my order, and I want the money back before Friday, when my rent is due. " * 4
QUESTIONS: list[Question] = [
    Choice("Which topic?", {"sport": "games", "billing": "payments and refunds", "politics": None}),
    YesNo("Is the writer content?"),
    Score("How urgent is it?", levels=5),
    Choice("Which number is in it?", [str(number) for number in range(26)]),
]


@pytest.fixture(scope="module")
def session() -> Iterator[rekindle.Session]:
    with rekindle.open_sync("smollm2-135m-instruct", progress=False, **SMOLLM2) as opened:
        yield opened
        assert opened.stats.unexpected_compilations == 0


def expected(session: rekindle.Session, question: Question) -> tuple[list[float], float]:
    """Return the probabilities of options, and their mass, by scoring each label behind the prompt."""
    engine = session._requests.engine.facts
    (reading,) = readings_of(engine.preparer.prompts, engine.checkpoint.uses.decisions, STATE, [question], {})
    logprobs = []
    for label in reading.labels:
        ids = [*reading.token_ids, label]
        scored = session.generate_sync(token_ids=ids, max_tokens=0, prompt_logprobs=0, cache_salt="apart")
        assert scored.prompt_logprobs is not None
        last = scored.prompt_logprobs[-1]
        assert last is not None
        logprobs.append(last.logprob)
    p = np.exp(logprobs)
    return (p / p.sum()).tolist(), float(p.sum())


def check(decision: Decision, truth: tuple[list[float], float]) -> None:
    np.testing.assert_allclose(list(decision.probabilities.values()), truth[0], atol=1e-5)
    assert decision.mass == pytest.approx(truth[1], abs=1e-5)


def test_decisions_are_the_softmax_of_a_forward_pass(session: rekindle.Session) -> None:
    truth = [expected(session, question) for question in QUESTIONS]
    others = [session.submit("The sea", max_tokens=30, seed=1, temperature=1.0, ignore_eos=True) for _ in range(3)]
    beside = session.decide_sync(STATE, QUESTIONS)  # the last question has more labels than max_logprobs
    again = session.decide_sync(STATE, QUESTIONS)
    salted = session.decide_sync(STATE, QUESTIONS[0], cache_salt="other")
    for other in others:
        other.result()
    assert again.cached_tokens > again.prompt_tokens / 2
    assert salted.cached_tokens == 0
    for decision, each in [*zip(beside, truth, strict=True), *zip(again, truth, strict=True), (salted, truth[0])]:
        check(decision, each)
    assert [each.rank == 1 for each in beside] == [each.rank == 1 for each in again]


def test_a_state_is_computed_once_for_its_questions(session: rekindle.Session) -> None:
    def computed() -> int:
        return session.stats.scheduler.computed_tokens

    questions = [YesNo(f"Does statement {number} hold?") for number in range(40)]
    before = computed()
    found = session.decide_sync("A state of its own. " + STATE, questions)
    of_state = session.count_tokens("A state of its own. " + STATE)
    own = sum(each.prompt_tokens - of_state for each in found)
    assert computed() - before <= of_state + 1.3 * own
    assert session.stats.scheduler.generated_tokens >= 40


def test_a_session_without_log_probabilities_decides_label_by_label() -> None:
    options: dict[str, Any] = {**SMOLLM2, "max_logprobs": 0, "prefix_cache": False}
    with rekindle.open_sync("smollm2-135m-instruct", progress=False, **options) as plain:
        check(plain.decide_sync(STATE, QUESTIONS[0]), expected(plain, QUESTIONS[0]))
