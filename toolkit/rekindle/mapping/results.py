"""Results of a map: its outcomes with their items."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from rekindle import markup
from rekindle.core.words import one_line, quantity
from rekindle.mapping.entries import decision_values
from rekindle.results.answer_table import MOST_ROWS, AnswerRow, PromptLabel
from rekindle.results.answers import Answers, import_pandas
from rekindle.results.generation import Generation
from rekindle.results.scores.decision import Decisions
from rekindle.results.scores.questions import Question

ANSWER_COLUMNS = {"text": "object", "parsed": "object", "finish_reason": "object", "tokens": "Int64", "error": "object"}
"""Columns of a data frame for the answers, after the columns of the items, with their types."""
LONGEST_ITEM = 60
"""Maximum number of characters of an item in the table of decisions."""

Result = TypeVar("Result")
"""Type of the result of an item: `Generation`, or `Decisions`."""


class MapResults(Answers[Result | Exception | None]):
    """Outcomes of the items of `session.map` in order: a list, displayed as a table in a cell.

    An element is a `Generation`, or the error in its place. In the partial results of an interrupt, unfinished items
    have None.

    Args:
        outcomes: the elements of the list.
        prompts: the label of each prompt.
        items: the caller's value for each item.

    Attributes:
        items: as above; not updated if the list is modified.
    """

    def __init__(
        self,
        outcomes: Iterable[Result | Exception | None] = (),
        prompts: Iterable[PromptLabel | None] = (),
        items: Sequence[Any] = (),
    ):
        super().__init__(outcomes, prompts)
        self.items = tuple(items)

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with one row per item.

        A mapping has one column per field; any other item has the column prompt. The columns text (str),
        parsed (the value of a constrained answer), finish_reason (str), tokens (Int64, the number of generated tokens)
        and error (str) follow. A field with the name of one of these columns gets the prefix "item.". Values that do
        not exist for an item are missing values.

        Raises:
            ImportError: pandas is not installed.
            ValueError: the list was modified, so its answers cannot be matched to items.
        """
        pandas = import_pandas()
        rows, own = self._records(), self._columns
        columns = dict.fromkeys(name for row in rows for name in row if name not in own)
        return pandas.DataFrame(rows, columns=[*columns, *own]).astype(own)

    def _display_(self) -> Any:
        """Return a table of all rows for a cell of marimo, by its display protocol."""
        marimo: Any = sys.modules["marimo"]
        try:
            rows = self._records()
        except ValueError:  # it was modified
            return marimo.Html(self._repr_mimebundle_()["text/html"])
        names = [name for name in dict.fromkeys(chain(*rows)) if any(row.get(name) is not None for row in rows)]
        records = [{name: row.get(name) for name in names} for row in rows]
        long = [name for name in names if name not in ("finish_reason", "tokens")]
        return marimo.ui.table(records, selection=None, wrapped_columns=long)

    @property
    def _columns(self) -> Mapping[str, str]:
        """Columns of a data frame for the answers, with their types."""
        return ANSWER_COLUMNS

    def _values(self, row: AnswerRow) -> dict[str, Any]:
        """Return the values of a row in these columns."""
        generation = row.outcome if isinstance(row.outcome, Generation) else None
        return {
            "text": generation and generation.text,
            "parsed": generation and generation.parsed,
            "finish_reason": generation and generation.finish_reason,
            "tokens": generation and len(generation.token_ids),
            "error": row.error,
        }

    def _records(self) -> list[dict[str, Any]]:
        """Return the rows of the data frame."""
        unchanged = (now is before for now, (before, _) in zip(self, self._pairs, strict=False))
        if len(self) != len(self.items) or not all(unchanged):
            raise ValueError(
                "the list was modified, so its answers cannot be matched to items: rekindle.Answers(...).to_frame() "
                "has the answers alone"
            )
        rows = zip(self.items, self.prompts, self, strict=True)
        return [self._record(item, AnswerRow((), prompt, outcome)) for item, prompt, outcome in rows]

    def _record(self, item: Any, row: AnswerRow) -> dict[str, Any]:
        if not isinstance(item, Mapping):
            return {"prompt": row.prompt, **self._values(row)}
        own = self._columns
        fields = {f"item.{name}" if name in own else str(name): value for name, value in item.items()}
        return {**fields, **self._values(row)}


ENOUGH: Final = 20
"""Fewest items with the same best option for a remark."""
NEARLY_ALL: Final = 0.98
"""Least share of items with the same best option for a remark."""


class MapDecisions(MapResults[Decisions]):
    """Outcomes of the items of `session.map` with questions, in order: a list, displayed as a table in a cell.

    An element is `rekindle.Decisions`, or the error in its place. In the partial results of an interrupt, unfinished
    items have None.

    Args:
        outcomes, prompts, items: as in `MapResults`.
        questions: the questions by the names of their columns.

    Attributes:
        questions: as above.
    """

    def __init__(
        self,
        outcomes: Iterable[Decisions | Exception | None] = (),
        prompts: Iterable[PromptLabel | None] = (),
        items: Sequence[Any] = (),
        questions: Mapping[str, Question] | None = None,
    ):
        super().__init__(outcomes, prompts, items)
        self.questions = dict(questions or {})

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with one row per item.

        A mapping has one column per field; any other item has the column prompt. Each question has a column with its
        name for the answers (str, bool or float), and one with ".confidence" behind the name; the column error (str)
        is last. A field with the name of one of these columns gets the prefix "item.".

        Raises:
            ImportError: pandas is not installed.
            ValueError: the list was modified, so its answers cannot be matched to items.
        """
        return super().to_frame()

    def __str__(self) -> str:
        rows = [("", "item", *self.questions), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"Decisions: {self._total()}", *(lines if self else []), *self._more()])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> markup.Bundle:
        # Beside a long error, an answer would else be broken before its confidence.
        cells = [(*row[:2], *(cell.replace(" (", "\N{NO-BREAK SPACE}(") for cell in row[2:])) for row in self._cells()]
        table = markup.table(cells, ("", "item", *self.questions)) if self else ""
        notes = "".join(map(markup.note, self._more()))
        return markup.bundle(str(self), markup.card("Decisions", self._total(), table, notes))

    @property
    def _columns(self) -> dict[str, str]:
        columns = {column: "object" for name in self.questions for column in (name, f"{name}.confidence")}
        return columns | {f"{name}.confidence": "float64" for name in self.questions} | {"error": "object"}

    def _values(self, row: AnswerRow) -> dict[str, Any]:
        decided = row.outcome if isinstance(row.outcome, Decisions) else [None] * len(self.questions)
        values: dict[str, Any] = {}
        for name, each in zip(self.questions, decided, strict=True):
            values |= {name: each and each.answer, f"{name}.confidence": each and each.confidence}
        return {**values, "error": row.error}

    def _json_object(self, row: AnswerRow) -> dict[str, Any]:
        """Return a row as an object of a JSON Lines file, with the decisions by name."""
        decided = row.outcome if isinstance(row.outcome, Decisions) else None
        by_name = None if decided is None else dict(zip(self.questions, map(decision_values, decided), strict=True))
        place = dict(zip(("place", "draw"), row.place, strict=False))
        return {**place, "prompt": row.prompt, "decisions": by_name, "error": row.error}

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the cells of the first rows: place, item, and the answer to each question with its confidence."""
        cells = []
        for row in list(self._rows())[:MOST_ROWS]:
            if isinstance(row.outcome, Decisions):
                answers = tuple(f"{each} ({each.confidence:.2f})" for each in row.outcome)
            else:
                text = one_line(row.error or "not ended", LONGEST_ITEM)
                answers = (text, *[""] * (len(self.questions) - 1))
            cells.append((row.name, row.prompt_line(LONGEST_ITEM), *answers))
        return cells

    def _total(self) -> str:
        failed, missing = sum(isinstance(each, Exception) for each in self), self.count(None)
        counts = [quantity(len(self), "item"), quantity(len(self.questions), "question")]
        counts += [quantity(failed, "error")] if failed else []
        return ", ".join([*counts, f"{missing:,} not ended"] if missing else counts)

    def _more(self) -> list[str]:
        return [*([f"and {len(self) - MOST_ROWS:,} more"] if len(self) > MOST_ROWS else []), *self.one_sided]

    @property
    def one_sided(self) -> list[str]:
        """A remark for each question with the same best option for nearly all items."""
        remarks = []
        for place, name in enumerate(self.questions):
            best = [each[place].best for each in self if isinstance(each, Decisions)]
            option, count = Counter(best).most_common(1)[0] if best else ("", 0)
            if count >= ENOUGH and count >= NEARLY_ALL * len(best):
                remarks.append(
                    f"{name}: {option!r} is the likeliest option for {count:,} of {quantity(len(best), 'item')}. If "
                    "the items differ, the model prefers a label whatever it reads: calibrate the probabilities with "
                    "known answers, as in tutorial 17, or ask a larger model"
                )
        return remarks
