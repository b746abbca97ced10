"""Answers to one prompt under different settings, displayed side by side."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rekindle import markup
from rekindle.core.words import one_line, quantity, seconds
from rekindle.results.answers import Answers
from rekindle.results.generation import Generation, ids_in_words
from rekindle.results.response_card import content_html, response_html, response_text

COLUMN = "flex:1 1 15em;min-width:0;padding:0.3em 0 0 0;border-top:1px solid "
LONGEST_VALUE = 60
"""Maximum number of characters of a setting's value."""


class Comparison(Answers[Generation]):
    """Answers of `session.compare`, in the order of the settings: a list, displayed in columns.

    Args:
        answers: the answers.
        settings: the settings of each answer.
        names: the name of each column.

    Attributes:
        settings: as above.
        names: as above.
    """

    def __init__(
        self,
        answers: Iterable[Generation] = (),
        settings: Sequence[Mapping[str, Any]] = (),
        names: Sequence[str] = (),
    ):
        super().__init__(answers)
        self.settings = [dict(setting) for setting in settings]
        self.names = list(names)

    @property
    def prompts(self) -> list[Any]:
        """Prompt of each answer: its text, or its last user message; None for token ids."""
        return [answer.prompt for answer in self]

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with one row per answer: its settings, then the columns of `Answers.to_frame`.

        A setting that an answer does not have is a missing value. A setting with the name of another column gets the
        prefix "setting.".

        Raises:
            ImportError: pandas is not installed.
        """
        frame = super().to_frame()
        names = dict.fromkeys(name for setting in self.settings for name in setting)
        for place, name in enumerate(names):
            column = f"setting.{name}" if name in frame.columns else name
            frame.insert(place, column, [setting.get(name) for setting in self.settings])
        return frame

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print all columns below each other if this is the result of a cell, and the repr inside a container."""
        printer.text(repr(self) if printer.indentation else self._text())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        prompt = markup.prompt_line(self[0].prompt or "") if self else ""
        columns = "".join(
            f'<div style="{COLUMN}{markup.LINE}">{self._column(place)}</div>' for place in range(len(self))
        )
        row = f'<div style="display:flex;flex-wrap:wrap;gap:0.6em 1.2em">{columns}</div>'
        return markup.bundle(self._text(), markup.card("Comparison", self._state, prompt, row))

    @property
    def _state(self) -> str:
        return quantity(len(self), "answer")

    def _column(self, place: int) -> str:
        answer = self[place]
        output = response_html(answer.response, "") or content_html(answer.text or answer.without_words)
        return f"<div><b>{markup.visible(self.names[place])}</b></div>{output}{markup.facts(self._facts(place))}"

    def _facts(self, place: int) -> dict[str, str | None]:
        answer = self[place]
        each = answer.timings.per_token(len(answer.token_ids))
        return {
            "ended": answer.finish_reason,
            "generated": quantity(len(answer.token_ids), "token"),
            "from the cache": f"{answer.cached_tokens:,} of {answer.usage.prompt_tokens:,}",
            "first token after": seconds(answer.timings.first_token),
            "then per token": None if each is None else seconds(each),
            "total": seconds(answer.timings.total),
            "same as the first for": self._common(place),
        }

    def _common(self, place: int) -> str | None:
        """Return the length of the common beginning with the first answer; None for another prompt."""
        first, answer = self[0], self[place]
        if not place or first.prompt_token_ids != answer.prompt_token_ids:
            return None
        if first.token_ids == answer.token_ids:
            return "all tokens"
        same = takewhile(lambda pair: pair[0] == pair[1], zip(first.token_ids, answer.token_ids, strict=False))
        count = sum(1 for _ in same)
        return quantity(count, "token") if count else None

    def _text(self) -> str:
        blocks = []
        for place, answer in enumerate(self):
            facts = ", ".join(f"{name} {value}" for name, value in self._facts(place).items() if value is not None)
            output = response_text(answer.response) or answer.text or ids_in_words(answer.token_ids)
            blocks.append(f"{self.names[place]}\n{output}\n[{facts}]")
        return "\n\n".join(blocks) or "no answers"


def column_name(setting: Mapping[str, Any]) -> str:
    """Return the settings of a column as text, such as "temperature 0.8, top_k 40"."""
    values = (f"{name} {one_line(repr(value), LONGEST_VALUE)}" for name, value in setting.items())
    return ", ".join(values) or "defaults"
