"""Calls for decisions: checked questions, the requests of their labels, and the decisions from the answers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rekindle.client.requests import Requests
from rekindle.core.errors import InvalidRequest
from rekindle.core.request import checks
from rekindle.core.request.accepted import LONGEST_SALT
from rekindle.results.facts.settings import SamplingParams
from rekindle.results.generation import Generation
from rekindle.results.scores.decision import Decision, Decisions
from rekindle.results.scores.questions import Question
from rekindle.scoring.decision_prompts import AnswerPlace, readings_of

LITTLE: Final = 0.5
"""Least probability of all labels together without a note."""
FORM: Final = (
    "The labels of a question have together less than half of the probability: this model would rather write something "
    "else than one of them, so its decisions say little. This note appears once per session."
)

ScoredPrompt = tuple[tuple[int, ...], SamplingParams]
"""Tokens before an answer, and the parameters of a request for the log-probabilities of labels."""


@dataclass(frozen=True, slots=True)
class DecisionCall:
    """Checked options of a call for decisions.

    Attributes:
        requests: the requests of the session.
        questions: the questions.
        variables: additional variables of the chat template.
        salt, adapter: `cache_salt` and `adapter` of each request.
    """

    requests: Requests
    questions: tuple[Question, ...]
    variables: Mapping[str, Any]
    salt: str
    adapter: str | None

    @classmethod
    def of(
        cls,
        requests: Requests,
        questions: Sequence[Question],
        chat_template_kwargs: Mapping[str, Any] | None,
        cache_salt: str,
        adapter: str | None,
    ) -> "DecisionCall":
        """Check a call.

        Raises:
            InvalidRequest: an option is invalid, or the model generates no text.
            SessionError: the session is closed or its engine failed.
        """
        requests.check_predicts()
        salt, own = checks.text("cache_salt", cache_salt, LONGEST_SALT), requests.adapter(adapter)
        requests.engine.check()
        return cls(requests, tuple(questions), dict(chat_template_kwargs or {}), salt, own)

    def readings(self, state: Any) -> list[AnswerPlace]:
        """Return the reading of each question about a state; raises as `readings_of` does. Takes milliseconds."""
        engine = self.requests.engine.facts
        form = engine.checkpoint.uses.decisions
        return readings_of(engine.preparer.prompts, form, state, self.questions, self.variables)

    def prompts(self, readings: Sequence[AnswerPlace]) -> list[list[ScoredPrompt]]:
        """Return the requests of each reading: several where the labels are more than `max_logprobs`."""
        most = self.requests.engine.facts.limits.max_logprobs
        size = max(1, most)
        return [
            [
                (each.token_ids, self._params(each.labels[at : at + size], most))
                for at in range(0, len(each.labels), size)
            ]
            for each in readings
        ]

    def decisions(self, readings: Sequence[AnswerPlace], answers: Iterator[Generation]) -> Decisions:
        """Return the decisions from the answers to all `prompts` of the readings, in order."""
        groups = [[next(answers) for _ in group] for group in self.prompts(readings)]
        triples = zip(self.questions, readings, groups, strict=True)
        decisions = Decisions(tuple(_decision(*each) for each in triples))
        if any(each.mass < LITTLE for each in decisions):
            self.requests.note_once("decide", FORM)
        return decisions

    def _params(self, labels: Sequence[int], most: int) -> SamplingParams:
        return SamplingParams(
            allowed_token_ids=frozenset(labels),
            max_tokens=1,
            ignore_eos=True,
            logprobs=min(len(labels), most),
            logprobs_of="allowed",
            cache_salt=self.salt,
            adapter=self.adapter,
        )


def check_questions(questions: Any) -> list[Question]:
    """Return the questions of a call as a list.

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


def _decision(question: Question, reading: AnswerPlace, answers: Sequence[Generation]) -> Decision:
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
