"""Results of a map: its outcomes with their items."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rekindle.results.answer_table import AnswerRow, PromptLabel
from rekindle.results.answers import Answers, import_pandas
from rekindle.results.generation import Generation

ANSWER_COLUMNS = ("text", "parsed", "finish_reason", "tokens", "error")
"""Columns of a data frame for the answers, after the columns of the items."""


class MapResults(Answers[Generation | Exception | None]):
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
        outcomes: Iterable[Generation | Exception | None] = (),
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
        rows = self._records()
        columns = dict.fromkeys(name for row in rows for name in row if name not in ANSWER_COLUMNS)
        frame = pandas.DataFrame(rows, columns=[*columns, *ANSWER_COLUMNS])
        return frame.astype({"tokens": "Int64"})

    def _records(self) -> list[dict[str, Any]]:
        """Return the rows of the data frame."""
        unchanged = (now is before for now, (before, _) in zip(self, self._pairs, strict=False))
        if len(self) != len(self.items) or not all(unchanged):
            raise ValueError(
                "the list was modified, so its answers cannot be matched to items: rekindle.Answers(...).to_frame() "
                "has the answers alone"
            )
        rows = zip(self.items, self.prompts, self, strict=True)
        return [_record(item, AnswerRow((), prompt, outcome)) for item, prompt, outcome in rows]


def _record(item: Any, row: AnswerRow) -> dict[str, Any]:
    generation = row.outcome if isinstance(row.outcome, Generation) else None
    if isinstance(item, Mapping):
        fields = {f"item.{name}" if name in ANSWER_COLUMNS else str(name): value for name, value in item.items()}
    else:
        fields = {"prompt": row.prompt}
    return {
        **fields,
        "text": generation and generation.text,
        "parsed": generation and generation.parsed,
        "finish_reason": generation and generation.finish_reason,
        "tokens": generation and len(generation.token_ids),
        "error": row.error,
    }
