"""Outcomes of items in the lines of a map's file."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rekindle.core.errors import InvalidData
from rekindle.core.request.constraint import Constraint
from rekindle.results.generation import Generation, parsed_of
from rekindle.results.scores.decision import Decision, Decisions
from rekindle.results.scores.questions import Question


class Entry(Protocol):
    """Entry of a line with the result of an item.

    Attributes:
        name: the key of the entry in the object of the line; its value is None for an error.
    """

    @property
    def name(self) -> str:
        """Key of the entry."""

    def write(self, result: Any) -> Any:
        """Return a result as JSON."""

    def read(self, data: Any) -> Any:
        """Return the result of a value of `write`; raises InvalidData for any other value."""


@dataclass(frozen=True, slots=True)
class GenerationEntry:
    """Generation as the dict of `Generation.to_dict`.

    Attributes:
        constraint: the constraint of the answers, for parsing stored texts.
    """

    constraint: Constraint | None
    name = "generation"

    def write(self, result: Generation) -> dict[str, Any]:
        """Return the dict of a generation."""
        return result.to_dict()

    def read(self, data: Any) -> Generation:
        """Return the generation of a dict, with its text parsed again."""
        generation = Generation.from_dict(data)
        if self.constraint is None:
            return generation
        value, why = parsed_of(self.constraint, generation)
        return replace(generation, parsed=value, unparsed=why)


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """Decisions as dicts by the name of the question: answer and confidence, for readers, and the measured values.

    Attributes:
        questions: the questions by name.
    """

    questions: Mapping[str, Question]
    name = "decisions"

    def write(self, result: Decisions) -> dict[str, Any]:
        """Return a dict for each decision."""
        return {name: decision_values(each) for name, each in zip(self.questions, result, strict=True)}

    def read(self, data: Any) -> Decisions:
        """Return the decisions of these dicts. The names may be others, as columns do not shape answers."""
        try:
            pairs = zip(self.questions.values(), data.values(), strict=True)
            return Decisions(tuple(_decision(question, values) for question, values in pairs))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidData(f"a line of the map has no valid decisions: {error!r}") from error


def decision_values(decision: Decision) -> dict[str, Any]:
    """Return a decision as JSON, without its question."""
    return {
        "answer": decision.answer,
        "confidence": decision.confidence,
        "probabilities": dict(decision.probabilities),
        "mass": decision.mass,
        "rank": decision.rank,
        "prompt_tokens": decision.prompt_tokens,
        "cached_tokens": decision.cached_tokens,
    }


def _decision(question: Question, values: Mapping[str, Any]) -> Decision:
    probabilities = {name: float(values["probabilities"][name]) for name in question.names}
    rank, *tokens = (int(values[name]) for name in ("rank", "prompt_tokens", "cached_tokens"))
    return Decision(question, probabilities, float(values["mass"]), rank, *tokens)
