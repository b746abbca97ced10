"""Decisions: the answers of a model to typed questions, as probabilities of the options."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from rekindle import markup
from rekindle.core.words import one_line, percent, quantity
from rekindle.results.scores.questions import Question

LIKELIEST = 3
"""Number of options of a question in a line of text."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Answer of a model to one typed question.

    Attributes:
        question: the question.
        probabilities: the probability of each option among the options, by its name: "yes" and "no" for a `YesNo`, and
            the numbers of levels, as text, for a `Score`.
        mass: the probability of the options together among all tokens. A small mass means that the model would rather
            write other words, and that the probabilities say little.
        rank: the rank of the most likely label among all tokens; 1 if the model would write a label.
        prompt_tokens: the number of tokens of the prompt, with the state.
        cached_tokens: the number of tokens from the prefix cache.
    """

    question: Question
    probabilities: Mapping[str, float]
    mass: float
    rank: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def best(self) -> str:
        """Name of the most likely option."""
        return max(self.probabilities, key=self.probabilities.__getitem__)

    @property
    def answer(self) -> str | bool | float:
        """Name of the most likely option of a `Choice`, True or False for a `YesNo`, expected level of a `Score`."""
        match self.question.kind:
            case "choice":
                return self.best
            case "yes_no":
                return self.probabilities["yes"] >= self.probabilities["no"]
            case "score":
                return sum(level * p for level, p in enumerate(self.probabilities.values()))

    @property
    def confidence(self) -> float:
        """Concentration of the probabilities, from 0 (even shares) to 1 (a single possible option).

        With n options and the highest probability p, (p - 1/n) / (1 - 1/n). For a `Score`, 1 minus the mean distance
        from the likeliest level, as a share of the mean distance of even shares from their middle. The formulas are
        those of the System One API.
        """
        count, shares = len(self.probabilities), list(self.probabilities.values())
        if count == 1:
            return 1.0
        if self.question.kind == "score":
            best, middle = shares.index(max(shares)), (count - 1) / 2
            distance = sum(p * abs(level - best) for level, p in enumerate(shares))
            even = sum(abs(level - middle) for level in range(count)) / count
            return max(0.0, 1 - distance / even)
        return max(0.0, (max(shares) - 1 / count) / (1 - 1 / count))

    def __str__(self) -> str:
        answer = self.answer
        if isinstance(answer, bool):
            return "yes" if answer else "no"
        return f"{answer:.2f}" if isinstance(answer, float) else answer

    def __repr__(self) -> str:
        return f"<rekindle.Decision {self}: {self._shares()}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        texts = dict(zip(self.question.names, self.question.descriptions, strict=True))
        if self.question.kind == "score":
            rows: list[tuple[str, ...]] = [
                (one_line(texts[name] or "", 60), percent(p)) for name, p in self.probabilities.items()
            ]
        else:
            likeliest = sorted(self.probabilities.items(), key=lambda pair: -pair[1])
            rows = [(name, percent(p), one_line(texts[name] or "", 60)) for name, p in likeliest]
        figures = {"confidence": f"{self.confidence:.2f}", "mass": percent(self.mass)}
        parts = (markup.passage(self.question.instructions), markup.table(rows), markup.facts(figures))
        return markup.bundle(repr(self), markup.card("Decision", str(self), *parts))

    def _shares(self) -> str:
        likeliest = sorted(self.probabilities.items(), key=lambda pair: -pair[1])
        more = ", ..." if len(likeliest) > LIKELIEST else ""
        return ", ".join(f"{name} {percent(p)}" for name, p in likeliest[:LIKELIEST]) + more


@dataclass(frozen=True, slots=True, repr=False)
class Decisions(Sequence[Decision]):
    """Decisions about one state, in the order of the questions.

    Attributes:
        decisions: the decisions.
    """

    decisions: tuple[Decision, ...]

    @property
    def answers(self) -> tuple[str | bool | float, ...]:
        """Answer to each question."""
        return tuple(each.answer for each in self.decisions)

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of all prompts together."""
        return sum(each.prompt_tokens for each in self.decisions)

    @property
    def cached_tokens(self) -> int:
        """Number of these tokens from the prefix cache."""
        return sum(each.cached_tokens for each in self.decisions)

    @overload
    def __getitem__(self, place: int) -> Decision: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Decision, ...]: ...
    def __getitem__(self, place: int | slice) -> Decision | tuple[Decision, ...]:
        return self.decisions[place]

    def __len__(self) -> int:
        return len(self.decisions)

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.decisions)

    def __repr__(self) -> str:
        wide = max((len(row[0]) for row in self._rows()), default=0)
        lines = [f"  {question:{wide}}  {answer:>8}  {shares}" for question, answer, _, _, shares in self._rows()]
        return "\n".join([f"<rekindle.Decisions: {quantity(len(self), 'answer')}>", *lines])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        table = markup.table(self._rows(), ("question", "answer", "confidence", "mass", "likeliest"))
        return markup.bundle(repr(self), markup.card("Decisions", quantity(len(self), "answer"), table))

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        return [
            (
                one_line(each.question.instructions, 60),
                str(each),
                f"{each.confidence:.2f}",
                percent(each.mass),
                each._shares(),
            )
            for each in self.decisions
        ]
