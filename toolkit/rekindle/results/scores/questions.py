"""Typed questions about a state: a choice among options, yes or no, a level on a scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from rekindle.core.errors import InvalidRequest
from rekindle.core.request import checks

QuestionKind = Literal["choice", "yes_no", "score"]
MOST_OPTIONS: Final = 26
"""Maximum number of options of a question: one letter each."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Question with options as possible answers.

    Attributes:
        instructions: the question or task, such as "Which topic?".
        options: the names of 1 to 26 options, each with a description or None; or the names alone.
    """

    instructions: str
    options: Mapping[str, str | None] | Sequence[str]
    kind: ClassVar[QuestionKind] = "choice"

    def __post_init__(self) -> None:
        """Check the question.

        Raises:
            InvalidRequest: a text is not a str, options are equal or have no name, or their number is out of range.
        """
        checks.text("instructions", self.instructions, checks.LONGEST_LONG_TEXT)
        is_mapping = isinstance(self.options, Mapping)
        if not is_mapping and not checks.is_sequence(self.options):
            raise InvalidRequest(
                f"the options of a Choice must be names with descriptions, or a list of names, got "
                f"{checks.preview(self.options)}"
            )
        names: list[Any] = list(self.options)
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise InvalidRequest(f"an option of a Choice must be a text, got {checks.preview(name)}")
        for text in self.options.values() if isinstance(self.options, Mapping) else ():
            if text is not None:
                _check_text("the description of an option", text)
        same = [name for place, name in enumerate(names) if name in names[:place]]
        if same:
            raise InvalidRequest(f"the options of a Choice must differ, and {checks.preview(same[0])} is there twice")
        _check_count("Choice", "options", len(names), least=1)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the options."""
        return tuple(self.options)

    @property
    def descriptions(self) -> tuple[str | None, ...]:
        """Description of each option, or None."""
        return tuple(self.options.values()) if isinstance(self.options, Mapping) else (None,) * len(self.options)


@dataclass(frozen=True, slots=True)
class YesNo:
    """Question with the answers yes and no.

    Attributes:
        instructions: the question, or a statement that is true or not.
        yes, no: the meaning of each answer; None (default) for no description.
    """

    instructions: str
    yes: str | None = None
    no: str | None = None
    kind: ClassVar[QuestionKind] = "yes_no"

    def __post_init__(self) -> None:
        """Check the question.

        Raises:
            InvalidRequest: a text is not a str.
        """
        checks.text("instructions", self.instructions, checks.LONGEST_LONG_TEXT)
        for name in ("yes", "no"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the options."""
        return ("yes", "no")

    @property
    def descriptions(self) -> tuple[str | None, ...]:
        """Description of each option, or None."""
        return (self.yes, self.no)


@dataclass(frozen=True, slots=True)
class Score:
    """Question with the levels of an ordered scale as possible answers.

    Attributes:
        instructions: the question, such as "How urgent?".
        levels: the texts of 2 to 26 levels, lowest first, or their number. Levels have the numbers 0, 1, 2, ...
    """

    instructions: str
    levels: int | Sequence[str] = 5
    kind: ClassVar[QuestionKind] = "score"

    def __post_init__(self) -> None:
        """Check the question.

        Raises:
            InvalidRequest: a text is not a str, levels are equal, or their number is out of range.
        """
        checks.text("instructions", self.instructions, checks.LONGEST_LONG_TEXT)
        if type(self.levels) is int:
            _check_count("Score", "levels", self.levels, least=2)
            return
        if not checks.is_sequence(self.levels):
            raise InvalidRequest(
                f"levels of a Score must be a number or a list of texts, got {checks.preview(self.levels)}"
            )
        texts: list[Any] = list(self.levels)  # type: ignore[arg-type]  # an int was returned above
        for text in texts:
            _check_text("a level", text)
        if len(set(texts)) < len(texts):
            raise InvalidRequest("the levels of a Score must differ, and two are equal")
        _check_count("Score", "levels", len(texts), least=2)

    @property
    def names(self) -> tuple[str, ...]:
        """Numbers of the levels, as text."""
        return tuple(map(str, range(len(self.descriptions))))

    @property
    def descriptions(self) -> tuple[str, ...]:
        """Text of each level."""
        if isinstance(self.levels, int):
            first, last = "0 (lowest)", f"{self.levels - 1} (highest)"
            return (first, *map(str, range(1, self.levels - 1)), last)
        return tuple(self.levels)


Question = Choice | YesNo | Score


def _check_text(name: str, value: Any) -> None:
    checks.text(name, value, checks.LONGEST_LONG_TEXT)
    if not value.strip():
        raise InvalidRequest(f"{name} must not be empty")


def _check_count(kind: str, name: str, count: int, *, least: int) -> None:
    if not least <= count <= MOST_OPTIONS:
        raise InvalidRequest(f"a {kind} needs {least} to {MOST_OPTIONS} {name}, got {count}")
